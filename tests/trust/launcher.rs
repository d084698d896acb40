//! Python with the runtime of a sanitizer, which must be in the program for a module that is compiled with it.
//! `--fault`: in place of Python, a fault that the sanitizer must report.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    fn Py_BytesMain(count: c_int, arguments: *mut *mut c_char) -> c_int;
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "--fault") {
        return fault();
    }
    let owned = arguments.into_iter().map(|one| CString::new(one.into_vec()).expect("it was one of C"));
    let mut arguments: Vec<*mut c_char> = owned.map(CString::into_raw).collect();
    let count = arguments.len() as c_int;
    arguments.push(std::ptr::null_mut());
    // SAFETY: as the arguments of main, which live as long as the process.
    std::process::exit(unsafe { Py_BytesMain(count, arguments.as_mut_ptr()) });
}

/// Two threads write to the same place.
#[cfg(tsan)]
fn fault() {
    static mut COUNT: usize = 0;
    // SAFETY: none, which is the fault.
    let add = || (0..1000).for_each(|_| unsafe { (&raw mut COUNT).write((&raw const COUNT).read() + 1) });
    std::thread::scope(|scope| _ = (scope.spawn(add), scope.spawn(add)));
}

/// Reads beyond the end of what it has.
#[cfg(asan)]
fn fault() {
    let values = std::hint::black_box(vec![1u8; 100]);
    // SAFETY: none, which is the fault.
    std::hint::black_box(unsafe { values.as_ptr().add(100).read() });
}
