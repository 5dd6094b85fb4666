//! Mutants: declares the variants of a crate that break one rule each, for its module `mutant`.
//!
//! A test that cannot fail proves nothing. A crate declares its mutants with [`variants!`], and checks with
//! [`is_mutant!`] in its production code whether one is active. Without the crate's feature `mutants` the
//! type has a single value, and every check is `false` at compile time.

/// Declares the type `Mutant` of a crate: lists of variants, each with the rule that it breaks and, if
/// known, the project where the bug was seen.
///
/// The crate has a feature `mutants`, and calls this in its module `mutant`.
#[macro_export]
macro_rules! variants {
    ($(
        $(#[doc = $list_doc:literal])+
        $list:ident {
            $($(#[doc = $doc:literal])+ $variant:ident: $rule:literal $(, $origin:literal)?;)*
        }
    )+) => {
        /// The active mutant, if any.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Mutant {
            /// No mutant: production.
            #[default]
            None,
            $($($(#[doc = $doc])+ #[cfg(feature = "mutants")] $variant,)*)+
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            $($(#[doc = $list_doc])+ pub const $list: &[Self] = &[$(Self::$variant,)*];)+

            /// The rule that it breaks, in a few words or by its id.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self {
                    Self::None => "none",
                    $($(Self::$variant => $rule,)*)+
                }
            }

            /// Where the bug was seen, if known.
            #[must_use]
            pub fn origin(self) -> &'static str {
                match self {
                    Self::None => "",
                    $($(Self::$variant => concat!($($origin)?),)*)+
                }
            }

            /// What it does, in a sentence.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self {
                    Self::None => "",
                    $($(Self::$variant => concat!($($doc),+),)*)+
                }
            }
        }
    };
}

/// Whether this mutant is active: `is_mutant!(self.mutant, IgnoreViews)`.
#[macro_export]
#[expect(clippy::crate_in_macro_def, reason = "the type belongs to the calling crate")]
macro_rules! is_mutant {
    ($mutant:expr, $variant:ident) => {{
        #[cfg(feature = "mutants")]
        let broken = $mutant == crate::mutant::Mutant::$variant;
        #[cfg(not(feature = "mutants"))]
        let (broken, _variant) = ($mutant != crate::mutant::Mutant::None, stringify!($variant));
        broken
    }};
}
