//! Headers, held against a plain reading of them and against etherparse.

mod parse;
mod plain;
mod route_option;
