//! The log on simulated and real disks. One program: a program for each file takes twice as long to compile.

mod disk_log;
mod failing;
mod filling;
mod old_format;
mod shared_reads;
mod simulation;
mod spanning;
mod support;
