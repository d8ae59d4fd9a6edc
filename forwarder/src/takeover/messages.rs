//! The messages between predecessor and successor.

use serde::{Deserialize, Serialize};

use crate::control::handover::{QuiescedState, Requirements, Running};

/// To be raised whenever a message changes its meaning.
pub const PROTOCOL: u32 = 4;

/// Opens the conversation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Of the successor.
    pub protocol: u32,
    /// Of its program.
    pub version: String,
    /// Its process, of which a descriptor comes with the message. (Protocol 1
    /// had neither.)
    #[serde(default)]
    pub pid: u32,
    /// What must be the same in both.
    pub requirements: Requirements,
}

/// Answers [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Take it. With it come descriptors: the predecessor's process, lock,
    /// listeners, then what runs.
    Offer(Box<Offer>),
    /// Not to this one, because.
    Refused(String),
}

/// What there is to take over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Of the predecessor's program.
    pub version: String,
    /// Its process. (The socket's credentials are of the process that made it first.)
    pub pid: u32,
    /// How the predecessor talks to the service manager, which started it and
    /// not the successor.
    pub notify_socket: Option<String>,
    /// How often the service manager expects to hear.
    pub watchdog_usec: Option<String>,
    /// None: no plan yet.
    pub running: Option<Running>,
}

/// The rest of the conversation.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The successor could go on at once.
    Ready,
    /// The predecessor's threads are at rest.
    Quiesced(QuiescedState),
    /// The successor is about to go on.
    Taking,
    /// It may.
    Go,
    /// It does.
    Running,
    /// The sender gives up, because.
    Failed(String),
}
