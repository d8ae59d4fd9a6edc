//! Compares headers with a plain implementation of them and with etherparse.

mod parse;
mod plain;
mod route_option;
