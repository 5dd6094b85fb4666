//! Mooncake's enumerations, in the form of pybind11: members of the class, with `name` and `value`, made
//! from a number, converted by `int()`, listed in `__members__`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

macro_rules! python_enums {
    ($($(#[$about:meta])* $name:ident { $($member:ident $text:literal = $value:literal),+ $(,)? })+) => {
        $(
            $(#[$about])*
            #[pyclass(module = "mooncake.store", frozen, eq, from_py_object)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum $name {
                $(
                    #[doc = $text]
                    #[pyo3(name = $text)]
                    $member = $value,
                )+
            }

            #[pymethods]
            impl $name {
                #[new]
                fn new(value: i64) -> PyResult<Self> {
                    match value {
                        $($value => Ok(Self::$member),)+
                        _ => {
                            let what = format!("{value} is not a valid {}", stringify!($name));
                            Err(PyValueError::new_err(what))
                        }
                    }
                }

                /// The name of the member.
                #[getter]
                pub(crate) fn name(&self) -> &'static str {
                    match self { $(Self::$member => $text,)+ }
                }

                /// The number of the member.
                #[getter]
                fn value(&self) -> i64 {
                    *self as i64
                }

                fn __int__(&self) -> i64 {
                    self.value()
                }

                fn __hash__(&self) -> i64 {
                    self.value()
                }

                fn __index__(&self) -> i64 {
                    self.value()
                }

                /// For copies and pickles.
                fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (i64,)) {
                    (slf.as_any().get_type(), (slf.get().value(),))
                }

                fn __repr__(&self) -> String {
                    format!("<{}.{}: {}>", stringify!($name), self.name(), self.value())
                }

                fn __str__(&self) -> String {
                    format!("{}.{}", stringify!($name), self.name())
                }
            }
        )+

        /// Adds the classes to the module.
        pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            $(
                let class = module.py().get_type::<$name>();
                let members = PyDict::new(module.py());
                $(members.set_item($text, $name::$member)?;)+
                class.setattr("__members__", &members)?;
                module.add_class::<$name>()?;
            )+
            Ok(())
        }
    };
}

python_enums! {
    /// How a put changes the soft pin of its object.
    SoftPinAction { Preserve "PRESERVE" = 0, Enable "ENABLE" = 1, Disable "DISABLE" = 2 }

    /// The type of an object. It has no effect, and exists so that callers can set it.
    ObjectDataType {
        Unknown "UNKNOWN" = 0,
        Kvcache "KVCACHE" = 1,
        Tensor "TENSOR" = 2,
        Weight "WEIGHT" = 3,
        Sample "SAMPLE" = 4,
        Activation "ACTIVATION" = 5,
        Gradient "GRADIENT" = 6,
        OptimizerState "OPTIMIZER_STATE" = 7,
        Metadata "METADATA" = 8,
        General "GENERAL" = 9,
    }

    /// The state of a copy of an object.
    ReplicaStatus {
        Undefined "UNDEFINED" = 0,
        Initialized "INITIALIZED" = 1,
        Processing "PROCESSING" = 2,
        Complete "COMPLETE" = 3,
        Removed "REMOVED" = 4,
        Failed "FAILED" = 5,
    }

    /// The kind of a task.
    TaskType { ReplicaCopy "REPLICA_COPY" = 0, ReplicaMove "REPLICA_MOVE" = 1 }

    /// The state of a task.
    TaskStatus {
        Pending "PENDING" = 0,
        Processing "PROCESSING" = 1,
        Success "SUCCESS" = 3,
        Failed "FAILED" = 2,
    }
}
