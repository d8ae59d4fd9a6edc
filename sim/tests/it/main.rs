//! Tests of one load balancer in memory, and of several.

mod agreement;
mod balancers;
mod batch;
mod common;
mod compare;
mod encapsulate;
mod expired;
mod explain;
mod generations_apart;
mod icmp;
mod join_ports;
mod kernel_cache;
mod load_balancer;
mod model;
mod multipath;
mod return_paths;
mod route_option;
mod second_chance;
mod share;
mod stateless;
mod trace;
mod track;
