//! The evaluation of the second paper (Olteanu and Raiciu, "Datacenter Scale Load
//! Balancing for Multipath Transport", HotMiddlebox 2016; section 4), redone.

pub mod lane;
pub mod table_1;
