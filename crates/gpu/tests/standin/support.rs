//! The stand-in for the driver, as a program sees it.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tiffin_gpu::{
    Begun, DeviceError, Direction, Piece, Place, Populated, Queued, Registration, Settings, Transfer,
};

/// The kinds of [`Standin::fail`].
pub(crate) const COPY: u32 = 0;
pub(crate) const RUNNING: u32 = 1;
pub(crate) const REGISTER: u32 = 2;
pub(crate) const ALLOCATE_HOST: u32 = 3;
pub(crate) const LAUNCH: u32 = 4;
pub(crate) const ALLOCATE: u32 = 5;
pub(crate) const BATCH: u32 = 7;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) registered_bytes: u64,
    pub(crate) copies: u64,
    pub(crate) batched: u64,
    pub(crate) launches: u64,
    pub(crate) pending: u64,
    pub(crate) device_bytes: u64,
    pub(crate) registered_bytes_peak: u64,
}

/// The library, loaded, with the primary context of device 0 current in this thread.
pub(crate) struct Standin {
    library: usize,
}

/// The stand-in has one state, so tests take turns.
pub(crate) fn standin() -> (MutexGuard<'static, ()>, Standin) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, Standin::load())
}

/// The settings of all tests here: small limits, so that they are reached.
pub(crate) fn settings() -> Settings {
    Settings {
        library: Some(library()),
        ring_bytes_max: 16 << 20,
        chunk_bytes: 4 << 20,
        gather_bytes: 4 << 20,
        registered_bytes_max: 64 << 20,
        ..Settings::default()
    }
}

/// The library lies beside the tests.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libtiffin_gpu_standin.so")
}

impl Standin {
    pub(crate) fn load() -> Self {
        static LIBRARY: OnceLock<usize> = OnceLock::new();
        let library = *LIBRARY.get_or_init(|| {
            assert!(settings().install());
            tiffin_gpu::load().unwrap();
            let name = CString::new(library().to_str().unwrap()).unwrap();
            // SAFETY: the library is the stand-in, which is loaded already.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.expose_provenance()
        });
        let standin = Self { library };
        standin.enter(0);
        standin.seed(1, false);
        standin
    }

    fn symbol<T: Copy>(&self, name: &str) -> T {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded, and the caller knows the type of the function.
        unsafe {
            let found = libc::dlsym(std::ptr::with_exposed_provenance_mut(self.library), name.as_ptr());
            assert!(!found.is_null(), "{name:?}");
            std::mem::transmute_copy(&found)
        }
    }

    /// Makes the context of a device current in this thread.
    pub(crate) fn enter(&self, device: i32) {
        let retain: unsafe extern "C" fn(*mut *mut c_void, i32) -> i32 =
            self.symbol("cuDevicePrimaryCtxRetain");
        let push: unsafe extern "C" fn(*mut c_void) -> i32 = self.symbol("cuCtxPushCurrent_v2");
        let mut context = std::ptr::null_mut();
        // SAFETY: the target is valid.
        unsafe { assert_eq!((retain(&raw mut context, device), push(context)), (0, 0)) };
    }

    pub(crate) fn alloc(&self, len: usize) -> u64 {
        let alloc: unsafe extern "C" fn(*mut u64, usize) -> i32 = self.symbol("cuMemAlloc_v2");
        let mut address = 0;
        // SAFETY: the target is valid.
        assert_eq!(unsafe { alloc(&raw mut address, len) }, 0);
        address
    }

    pub(crate) fn free(&self, address: u64) {
        let free: unsafe extern "C" fn(u64) -> i32 = self.symbol("cuMemFree_v2");
        // SAFETY: the stand-in checks the address.
        assert_eq!(unsafe { free(address) }, 0);
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let copy: unsafe extern "C" fn(u64, *const u8, usize) -> i32 = self.symbol("cuMemcpyHtoD_v2");
        // SAFETY: the source is valid, and the stand-in checks the target.
        assert_eq!(unsafe { copy(address, bytes.as_ptr(), bytes.len()) }, 0);
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let copy: unsafe extern "C" fn(*mut u8, u64, usize) -> i32 = self.symbol("cuMemcpyDtoH_v2");
        let mut bytes = vec![0; len];
        // SAFETY: the target is valid, and the stand-in checks the source.
        assert_eq!(unsafe { copy(bytes.as_mut_ptr(), address, len) }, 0);
        bytes
    }

    /// Fills memory in the order of a stream.
    pub(crate) fn fill(&self, address: u64, value: u8, len: usize, stream: u64) {
        let fill: unsafe extern "C" fn(u64, u8, usize, u64) -> i32 = self.symbol("cuMemsetD8Async");
        // SAFETY: the stand-in checks address and stream.
        assert_eq!(unsafe { fill(address, value, len, stream) }, 0);
    }

    /// Copies on the device in the order of a stream.
    pub(crate) fn copy(&self, target: u64, source: u64, len: usize, stream: u64) {
        let copy: unsafe extern "C" fn(u64, u64, usize, u64) -> i32 = self.symbol("cuMemcpyDtoDAsync_v2");
        // SAFETY: the stand-in checks addresses and stream.
        assert_eq!(unsafe { copy(target, source, len, stream) }, 0);
    }

    pub(crate) fn synchronize(&self, stream: u64) {
        let synchronize: unsafe extern "C" fn(u64) -> i32 = self.symbol("cuStreamSynchronize");
        // SAFETY: the stand-in checks the stream.
        assert_eq!(unsafe { synchronize(stream) }, 0);
    }

    /// Pins host memory as its owner may do, or ends that.
    pub(crate) fn pin(&self, start: u64, len: usize, is_pinned: bool) {
        let pin: unsafe extern "C" fn(u64, usize, u32) -> i32 = self.symbol("cuMemHostRegister_v2");
        let unpin: unsafe extern "C" fn(u64) -> i32 = self.symbol("cuMemHostUnregister");
        // SAFETY: the stand-in checks the range.
        assert_eq!(unsafe { if is_pinned { pin(start, len, 3) } else { unpin(start) } }, 0);
    }

    /// Pinned host memory of the driver.
    pub(crate) fn alloc_host(&self, len: usize) -> u64 {
        let alloc: unsafe extern "C" fn(*mut u64, usize, u32) -> i32 = self.symbol("cuMemHostAlloc");
        let mut address = 0;
        // SAFETY: the target is valid.
        assert_eq!(unsafe { alloc(&raw mut address, len, 3) }, 0);
        address
    }

    pub(crate) fn free_host(&self, address: u64) {
        let free: unsafe extern "C" fn(u64) -> i32 = self.symbol("cuMemFreeHost");
        // SAFETY: the stand-in checks the address.
        assert_eq!(unsafe { free(address) }, 0);
    }

    pub(crate) fn stream(&self, flags: u32) -> u64 {
        let create: unsafe extern "C" fn(*mut u64, u32) -> i32 = self.symbol("cuStreamCreate");
        let mut stream = 0;
        // SAFETY: the target is valid.
        assert_eq!(unsafe { create(&raw mut stream, flags) }, 0);
        stream
    }

    pub(crate) fn fail(&self, kind: u32, after: u64, count: u64) {
        let fail: unsafe extern "C" fn(u32, u64, u64) -> i32 = self.symbol("standin_fail");
        // SAFETY: it only stores numbers.
        assert_eq!(unsafe { fail(kind, after, count) }, 0);
    }

    pub(crate) fn seed(&self, seed: u64, is_eager: bool) {
        let set: unsafe extern "C" fn(u64, i32) -> i32 = self.symbol("standin_seed");
        // SAFETY: it only stores numbers.
        assert_eq!(unsafe { set(seed, i32::from(is_eager)) }, 0);
    }

    /// Whether the work of a stream is recorded into a graph.
    pub(crate) fn capture(&self, stream: u64, is_captured: bool) {
        let set: unsafe extern "C" fn(u64, i32, i32) -> i32 = self.symbol("standin_stream");
        // SAFETY: it only stores numbers.
        assert_eq!(unsafe { set(stream, i32::from(is_captured), 0) }, 0);
    }

    /// Whether events on a stream stay unfinished.
    pub(crate) fn stall(&self, stream: u64, is_stalled: bool) {
        let set: unsafe extern "C" fn(u64, i32, i32) -> i32 = self.symbol("standin_stream");
        // SAFETY: it only stores numbers.
        assert_eq!(unsafe { set(stream, 0, i32::from(is_stalled)) }, 0);
    }

    /// How often a function of the driver was called.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        let get: unsafe extern "C" fn(*const i8, *mut u64) -> i32 = self.symbol("standin_calls");
        let (name, mut calls) = (CString::new(name).unwrap(), 0);
        // SAFETY: the name ends with a zero, and the target is valid.
        assert_eq!(unsafe { get(name.as_ptr().cast(), &raw mut calls) }, 0);
        calls
    }

    pub(crate) fn counts(&self) -> Counts {
        let get: unsafe extern "C" fn(*mut Counts) -> i32 = self.symbol("standin_counts");
        let mut counts = Counts::default();
        // SAFETY: the target is valid.
        assert_eq!(unsafe { get(&raw mut counts) }, 0);
        counts
    }
}

/// Host memory of whole pages.
pub(crate) struct Host {
    start: u64,
    len: usize,
}

impl Host {
    pub(crate) fn new(len: usize) -> Self {
        let len = len.next_multiple_of(4096);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        Self { start: start.expose_provenance() as u64, len }
    }

    /// Memory of another owner, which `end` gives back to it.
    pub(crate) fn over(start: u64, len: usize) -> Self {
        Self { start, len }
    }

    /// Leaves the memory to its owner.
    pub(crate) fn end(self) -> u64 {
        std::mem::ManuallyDrop::new(self).start
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.start as usize);
        // SAFETY: the memory is mapped, and only this value names it.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }

    /// Registers all of it, and waits for that.
    pub(crate) fn register(&self, is_read_only: bool) -> Registration {
        self.register_parts(is_read_only, vec![(0, self.len as u64)])
    }

    /// Registers parts of it (offset and length), each for itself, and waits for that.
    pub(crate) fn register_parts(&self, is_read_only: bool, parts: Vec<(u64, u64)>) -> Registration {
        let registration =
            Registration::new(self.start, self.len as u64, is_read_only, Box::new(Parts(parts)));
        registration.extend(0);
        while !registration.is_settled() {
            std::thread::yield_now();
        }
        registration
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.start as usize), self.len) };
    }
}

/// The parts of a mapping whose pages exist.
struct Parts(Vec<(u64, u64)>);

impl Populated for Parts {
    fn next(&self, offset: u64) -> Option<(u64, u64)> {
        self.0.iter().copied().find(|(start, _)| *start >= offset)
    }
}

/// # Safety
/// See `HostCopy`.
unsafe fn plain(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
}

/// A transfer of memory that the test keeps.
pub(crate) fn transfer(place: &Place, direction: Direction, pieces: &[Piece]) -> Transfer {
    // SAFETY: the tests keep all memory until the transfer has ended.
    unsafe { Transfer::new(place, direction, pieces.to_vec(), plain) }.unwrap()
}

/// Runs a transfer to its end.
pub(crate) fn run(place: &Place, direction: Direction, pieces: &[Piece]) -> Result<(), DeviceError> {
    let mut transfer = transfer(place, direction, pieces);
    while !transfer.poll()? {}
    Ok(())
}

/// Queues loads of memory that the test keeps.
pub(crate) fn queue(place: &Place, pieces: &[Piece]) -> Result<Begun, DeviceError> {
    // SAFETY: the tests keep all memory until the copies have ended.
    unsafe { Queued::begin(place, pieces.to_vec()) }
}

/// The same, which must succeed.
pub(crate) fn queued(place: &Place, pieces: &[Piece]) -> Queued {
    match queue(place, pieces).unwrap() {
        Begun::Queued(queued) => queued,
        Begun::Full => panic!("too many lists are queued"),
        Begun::NotRegistered => panic!("the memory is not registered"),
    }
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}
