//! The programs that measure how long clients wait, with real sockets.

use aya::maps::{HashMap, MapData};

use super::sockets::{Connection, Established, Sockets, namespace};
use super::timestamps::Ends;
use super::*;
use crate::records::Flow;
use crate::responses::Sampler;

const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

struct Measured {
    program: Program,
    sampler: Sampler,
    asked: HashMap<MapData, Record<Flow>, u64>,
}

impl Measured {
    fn new() -> Measured {
        let mut program = program_or_skip("").expect("asked before");
        let mut sampler = program.sampler().unwrap();
        sampler.set(1).unwrap();
        let asked = ebpf::table(&mut program.object, "asked").unwrap();
        Measured { program, sampler, asked }
    }

    fn request(&self, of: &Connection, flags: u8) {
        self.program.run_classifier(REQUESTS_PROGRAM, &ends(of).segment(false, flags, &[]));
    }

    fn answer(&self, of: &Connection, flags: u8) {
        self.program.run_classifier(ANSWERS_PROGRAM, &ends(of).segment(true, flags, &[]));
    }

    /// Requests without an answer, answers that were measured, RSTs.
    fn counts(&self) -> (usize, u64, u64) {
        let counted = self.program.counters.responses.read().unwrap();
        let sum = |of: fn(&crate::responses::Counted) -> u64| counted.values().map(of).sum();
        (self.asked.keys().count(), sum(|one| one.answers()), sum(|one| one.resets))
    }
}

fn ends(of: &Connection) -> Ends {
    let (client_port, vip_port) = of.ports();
    Ends { family: of.family, client_port, vip_port }
}

#[test]
fn a_request_of_a_connection_is_measured_until_its_answer() {
    if program_or_skip("a_request_of_a_connection_is_measured_until_its_answer").is_none() {
        return;
    }
    let namespace = namespace();
    namespace.inside(|| {
        let sockets = Sockets::new(&namespace);
        let mut measured = Measured::new();
        for connection in sockets.connections.iter().filter(|one| one.state != Established) {
            measured.request(connection, ACK);
            assert_eq!(measured.counts(), (0, 0, 0), "{connection:?}: nobody has it");
        }
        let mut answers = 0;
        for connection in sockets.connections.iter().filter(|one| one.state == Established) {
            measured.answer(connection, ACK);
            assert_eq!(measured.counts(), (0, answers, 0), "nothing was asked");
            measured.request(connection, ACK);
            measured.request(connection, ACK);
            assert_eq!(measured.counts(), (1, answers, 0));
            measured.answer(connection, ACK);
            measured.answer(connection, ACK);
            answers += 1;
            assert_eq!(measured.counts(), (0, answers, 0));
            measured.request(connection, ACK);
            measured.request(connection, RST);
            assert_eq!(measured.counts(), (0, answers, 0), "the client gave up");
            measured.request(connection, ACK);
            measured.answer(connection, FIN | ACK);
            answers += 1;
            assert_eq!(measured.counts(), (0, answers, 0), "the last answer");
        }
        assert_eq!(answers, 4);
        let connection = sockets.connections.iter().find(|one| one.state == Established).unwrap();
        measured.answer(connection, RST);
        assert_eq!(measured.counts(), (0, answers, 1));
        // One in 64 flows; this one with some seed or another.
        let mut begun = 0;
        for _ in 0..640 {
            measured.sampler.draw_again();
            measured.sampler.set(64).unwrap();
            measured.request(connection, ACK);
            begun += measured.counts().0;
            measured.request(connection, RST);
        }
        assert!((1..=40).contains(&begun), "{begun} of 640");
    });
}
