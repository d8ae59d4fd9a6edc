use super::*;

fn packet(timestamp_ns: u64, original_len: u32, bytes: &[u8]) -> Packet {
    Packet { timestamp_ns, original_len, bytes: bytes.to_vec() }
}

fn read(file: &[u8]) -> Result<Vec<Packet>, Error> {
    Reader::new(file)?.collect()
}

fn written(packets: &[Packet]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for p in packets {
        writer.write(p.timestamp_ns, p.original_len, &p.bytes).unwrap();
    }
    writer.finish().unwrap()
}

/// A file of either byte order, built field by field.
struct Builder {
    order: Order,
    bytes: Vec<u8>,
}

impl Builder {
    fn new(order: Order) -> Builder {
        Builder { order, bytes: Vec::new() }
    }

    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(if self.order == Order::Big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        });
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(if self.order == Order::Big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn classic(self, magic: u32, link_type: u32) -> Self {
        self.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65535).u32(link_type)
    }

    fn record(self, seconds: u32, fraction: u32, original_len: u32, data: &[u8]) -> Self {
        self.u32(seconds).u32(fraction).u32(data.len() as u32).u32(original_len).raw(data)
    }

    /// A block around a body built in the same byte order.
    fn block(self, kind: u32, body: impl FnOnce(Builder) -> Builder) -> Self {
        let mut body = body(Builder::new(self.order)).bytes;
        body.resize(body.len().next_multiple_of(4), 0);
        let len = body.len() as u32 + 12;
        self.u32(kind).u32(len).raw(&body).u32(len)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |b| b.u32(0x1a2b_3c4d).u16(1).u16(0).raw(&[0xff; 8]))
    }

    fn interface(self, link_type: u16, snap_len: u32, options: &[u8]) -> Self {
        self.block(1, |b| b.u16(link_type).u16(0).u32(snap_len).raw(options))
    }

    fn enhanced(self, interface: u32, ticks: u64, original_len: u32, data: &[u8]) -> Self {
        self.block(6, |b| {
            b.u32(interface)
                .u32((ticks >> 32) as u32)
                .u32(ticks as u32)
                .u32(data.len() as u32)
                .u32(original_len)
                .raw(data)
        })
    }
}

#[test]
fn what_is_written_is_read_back() {
    let packets = [
        packet(1_700_000_000_123_456_000, 60, b"hello"),
        packet(1_700_000_001_000_001_000, 3, b"abc"),
    ];
    assert_eq!(read(&written(&packets)).unwrap(), packets);
}

#[test]
fn an_empty_capture_has_no_packets() {
    assert_eq!(read(&written(&[])).unwrap(), []);
}

#[test]
fn a_packet_longer_than_the_snap_length_is_cut_and_says_so() {
    let file = written(&[packet(0, 70_000, &[7; 70_000])]);
    let packets = read(&file).unwrap();
    assert_eq!((packets[0].bytes.len(), packets[0].original_len), (65_535, 70_000));
}

#[test]
fn a_time_after_2106_is_refused() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    assert!(writer.write((1 << 32) * 1_000_000_000, 1, b"x").is_err());
}

#[test]
fn classic_files_of_both_byte_orders_and_clocks_are_read() {
    for order in [Order::Little, Order::Big] {
        for (magic, fraction) in [(0xa1b2_c3d4, 5), (0xa1b2_3c4d, 5000)] {
            let file = Builder::new(order).classic(magic, 1).record(9, fraction, 64, b"data");
            assert_eq!(
                read(&file.bytes).unwrap(),
                [packet(9_000_005_000, 64, b"data")],
                "{order:?} {magic:x}"
            );
        }
    }
}

#[test]
fn a_link_type_with_a_frame_check_sequence_is_still_ethernet() {
    let file = Builder::new(Order::Little).classic(0xa1b2_c3d4, 0x2400_0001).record(0, 0, 1, b"x");
    assert_eq!(read(&file.bytes).unwrap().len(), 1);
}

#[test]
fn pcapng_keeps_each_interfaces_clock() {
    for order in [Order::Little, Order::Big] {
        let nanoseconds = Builder::new(order).u16(9).u16(1).raw(&[9, 0, 0, 0]).u32(0).bytes;
        let binary_and_offset = Builder::new(order)
            .u16(2)
            .u16(5)
            .raw(b"eth0\0\0\0\0")
            .u16(9)
            .u16(1)
            .raw(&[0x80 | 10, 0, 0, 0])
            .u16(14)
            .u16(8)
            .raw(&if order == Order::Big { 100_i64.to_be_bytes() } else { 100_i64.to_le_bytes() })
            .bytes;
        let file = Builder::new(order)
            .section()
            .interface(1, 0, &[])
            .interface(1, 0, &nanoseconds)
            .block(4, |b| b.raw(b"name resolution, passed over"))
            .interface(1, 0, &binary_and_offset)
            .enhanced(0, 1_000_001, 60, b"micro")
            .enhanced(1, 5_000_000_007, 6, b"nano")
            .enhanced(2, 1536, 6, b"binary");
        let expected = [
            packet(1_000_001_000, 60, b"micro"),
            packet(5_000_000_007, 6, b"nano"),
            packet(101_500_000_000, 6, b"binary"),
        ];
        assert_eq!(read(&file.bytes).unwrap(), expected, "{order:?}");
    }
}

#[test]
fn simple_and_obsolete_packets_are_read() {
    let file = Builder::new(Order::Little)
        .section()
        .interface(1, 4, &[])
        .block(2, |b| b.u16(0).u16(0xffff).u32(0).u32(7).u32(3).u32(9).raw(b"old"))
        .block(3, |b| b.u32(6).raw(b"cut!"));
    assert_eq!(read(&file.bytes).unwrap(), [packet(7000, 9, b"old"), packet(7000, 6, b"cut!")]);
}

#[test]
fn a_second_section_has_its_own_byte_order_and_interfaces() {
    let mut file = Builder::new(Order::Little).section().interface(113, 0, &[]);
    file.order = Order::Big;
    let file = file.section().interface(1, 0, &[]).enhanced(0, 1, 1, b"x");
    assert_eq!(read(&file.bytes).unwrap(), [packet(1000, 1, b"x")]);
}

#[test]
fn an_interface_that_is_not_ethernet_matters_only_when_used() {
    let file = Builder::new(Order::Little).section().interface(1, 0, &[]).interface(113, 0, &[]);
    let file = file.enhanced(0, 0, 1, b"x");
    assert_eq!(read(&file.bytes).unwrap().len(), 1);
    let error = read(&file.enhanced(1, 0, 1, b"x").bytes).unwrap_err();
    assert!(matches!(error.problem, Problem::LinkType(113)), "{error}");
}

#[test]
fn errors_say_where() {
    let first = Builder::new(Order::Little).classic(0xa1b2_c3d4, 1).record(0, 0, 4, b"good");
    let damaged = first.u32(0).u32(0).u32(u32::MAX).u32(4);
    let error = read(&damaged.bytes).unwrap_err();
    assert_eq!(error.offset, 24 + 16 + 4);
    assert!(matches!(error.problem, Problem::Length { .. }), "{error}");
}

#[test]
fn bad_headers_are_named() {
    let problem = |bytes: &[u8]| read(bytes).unwrap_err().problem;
    assert!(matches!(problem(b""), Problem::Empty));
    assert!(matches!(
        problem(b"GIF89a..........................."),
        Problem::NotACapture(0x4749_4638)
    ));
    let cooked = Builder::new(Order::Little).classic(0xa1b2_c3d4, 113);
    assert!(matches!(problem(&cooked.bytes), Problem::LinkType(113)));
    let old = Builder::new(Order::Little).u32(0xa1b2_c3d4).u16(2).u16(2).raw(&[0; 16]);
    assert!(matches!(problem(&old.bytes), Problem::Version { major: 2, minor: 2, .. }));
    let unknown = Builder::new(Order::Little).section().enhanced(0, 0, 1, b"x");
    assert!(matches!(problem(&unknown.bytes), Problem::UnknownInterface(0)));
}

#[test]
fn damaged_blocks_are_named() {
    let problem = |bytes: &[u8]| read(bytes).unwrap_err().problem;
    let section = || Builder::new(Order::Little).section();
    assert!(matches!(problem(&section().u32(1).u32(13).bytes), Problem::Length { len: 13, .. }));
    let unrepeated = section().u32(1).u32(20).u16(1).u16(0).u32(0).u32(24);
    assert!(matches!(problem(&unrepeated.bytes), Problem::Length { len: 24, .. }));
    let resolution = section().interface(1, 0, &[9, 0, 1, 0, 40, 0, 0, 0]);
    assert!(matches!(problem(&resolution.bytes), Problem::Resolution(40)));
    let overlong = section().interface(1, 0, &[]).block(6, |b| b.raw(&[0; 12]).u32(500).u32(500));
    assert!(matches!(problem(&overlong.bytes), Problem::Length { len: 500, .. }));
    let option = section().interface(1, 0, &[9, 0, 200, 0]);
    assert!(matches!(problem(&option.bytes), Problem::Length { len: 200, .. }));
}

/// Cut anywhere, a file gives the packets before the cut and then an error
/// that points at the record cut, or (cut between records) no error.
#[test]
fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
    let classic = written(&[packet(0, 5, b"first"), packet(1000, 6, b"second")]);
    let ng = Builder::new(Order::Big).section().interface(1, 0, &[]).enhanced(0, 0, 1, b"x").bytes;
    for file in [classic, ng] {
        let whole = read(&file).unwrap();
        let mut clean_cuts = 0;
        for cut in 0..file.len() {
            match read(&file[..cut]) {
                Ok(packets) => {
                    assert!(packets.len() < whole.len(), "cut at {cut}");
                    clean_cuts += 1;
                }
                Err(error) => {
                    assert!(
                        matches!(error.problem, Problem::Truncated(_) | Problem::Empty),
                        "cut at {cut}: {error}"
                    );
                    assert!(error.offset <= cut as u64);
                }
            }
        }
        assert_eq!(clean_cuts, 2, "behind the header and behind one record");
    }
}

#[test]
fn after_an_error_nothing_comes() {
    let mut file = written(&[packet(0, 5, b"first")]);
    file.pop();
    let mut reader = Reader::new(&file[..]).unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn a_missing_file_is_named() {
    let error = Reader::open("/nonexistent/in.pcap").err().unwrap().to_string();
    assert!(error.contains("/nonexistent/in.pcap") && error.contains("No such file"), "{error}");
}
