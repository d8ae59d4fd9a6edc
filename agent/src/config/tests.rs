use super::*;

const WHOLE: &str = "
interface: eth0
mode: native
load_balancers: [10.0.0.1, 2001:db8::/64]
vips:
- 203.0.113.0/24
- 2001:db8:a::10
name: web-1
agents:
  web-1: [10.1.0.11, '2001:db8:1::11']
  web-2: 10.1.0.12
metrics_listen: '[::1]:9473'
stats_interval: 5m
pin: /sys/fs/bpf/guideway-agent
";

fn problems(text: &str) -> Vec<String> {
    Config::parse("agent.yaml", text).unwrap_err().0
}

#[test]
fn every_field_is_read() {
    let config = Config::parse("agent.yaml", WHOLE).unwrap();
    assert_eq!(config.interface, "eth0");
    assert_eq!(config.mode, Preference::Native);
    let texts =
        |prefixes: &[IpPrefix]| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&config.load_balancers), ["10.0.0.1/32", "2001:db8::/64"]);
    assert_eq!(texts(&config.vips), ["203.0.113.0/24", "2001:db8:a::10/128"]);
    assert_eq!(config.own_address("10.9.9.9".parse().unwrap()), "10.1.0.11".parse().ok());
    assert_eq!(config.own_address("::9".parse().unwrap()), "2001:db8:1::11".parse().ok());
    let others: Vec<IpAddr> = config.other_agents().collect();
    assert_eq!(others, ["10.1.0.12".parse::<IpAddr>().unwrap()]);
    assert_eq!(config.metrics_listen.unwrap().to_string(), "[::1]:9473");
    assert_eq!(config.stats_interval, Duration::from_secs(300));
    assert_eq!(config.pin.as_deref(), Some(Path::new("/sys/fs/bpf/guideway-agent")));
    let unpinned = Config::parse("agent.yaml", &WHOLE.replace("/sys/fs/bpf/guideway-agent", "off"));
    assert!(unpinned.is_ok_and(|config| config.unpinned && config.pin.is_none()));
}

#[test]
fn the_shortest_config_has_no_agents() {
    let config = Config::parse(
        "agent.yaml",
        "{interface: eth0, load_balancers: [10.0.0.1], vips: [10.9.0.1]}",
    )
    .unwrap();
    assert!(config.agents.is_empty() && config.name.is_empty() && config.metrics_listen.is_none());
    assert_eq!(config.mode, Preference::Auto);
    assert_eq!(config.stats_interval, Duration::ZERO);
}

/// All at once, in the order of lines, each with its culprit and its cure.
#[test]
fn all_problems_are_reported_at_once() {
    let text = "interface: 5
mode: fast
load_balancers: [10.0.0.300, 10.0.0.1/8]
vip: [203.0.113.10]
agents: {web-1: 0.0.0.0, 7: 10.1.0.7}
metrics_listen: 9473
stats_interval: 5 minutes
pin: here
";
    assert_eq!(
        problems(text),
        [
            "agent.yaml:1: `vips` is missing: the service addresses that this backend has on lo",
            "agent.yaml:1: interface: is no text: write one, in quotes if it looks like a number",
            "agent.yaml:2: mode: \"fast\" is no mode: write auto (what suits the driver), native (XDP in the driver, or nothing), generic (XDP, slowly) or tc (traffic control)",
            "agent.yaml:3: load_balancers[0]: \"10.0.0.300\" is not an address or prefix (a prefix is ADDRESS/BITS, such as 10.0.0.0/8 or 2001:db8::/32): write 10.0.0.1 or 10.0.0.0/24",
            "agent.yaml:3: load_balancers[1]: \"10.0.0.1/8\" is not an address or prefix (the address has bits set behind the prefix): write 10.0.0.1 or 10.0.0.0/24",
            "agent.yaml:4: vip: there is no such field; there are: agents, controllers, interface, key_file, load_balancers, metrics_listen, mode, mptcp, name, pin, response_times, stats_interval, vips",
            "agent.yaml:5: agents: has a name that is no text: put it into quotes",
            "agent.yaml:5: agents.web-1: 0.0.0.0 is no address of a backend",
            "agent.yaml:5: agents: needs `name`: which of them this one is",
            "agent.yaml:6: metrics_listen: is no text: write one, in quotes if it looks like a number",
            "agent.yaml:7: stats_interval: \"5 minutes\" is no duration: write 30s or 5m",
            "agent.yaml:8: pin: here is relative: write /sys/fs/bpf/guideway-agent, or off",
        ]
    );
}

/// The whole config with one text in the place of another.
fn with(old: &str, new: &str) -> Vec<String> {
    assert!(WHOLE.contains(old), "{old}");
    problems(&WHOLE.replace(old, new))
}

#[test]
fn agents_that_cannot_work_together_are_refused() {
    assert_eq!(
        with("web-2: 10.1.0.12", "web-2: 10.1.0.11"),
        [
            "agent.yaml:10: agents: 10.1.0.11 is an address of web-1 and of web-2: each agent has its own"
        ]
    );
    assert_eq!(
        with("name: web-1", "name: web-9"),
        ["agent.yaml:8: name: \"web-9\" is none of the agents: web-1, web-2"]
    );
    assert_eq!(
        with("web-1: [10.1.0.11, ", "web-1: ["),
        [
            "agent.yaml:10: agents: web-1 has no IPv4 address to reach 10.1.0.12 from: add one, or take 10.1.0.12 out"
        ]
    );
    assert_eq!(
        with("web-2: 10.1.0.12", "web-2: [10.1.0.12, 10.1.0.13]"),
        [
            "agent.yaml:11: agents.web-2: has more than one address of a family: one of each is enough"
        ]
    );
    assert_eq!(
        with("web-2: 10.1.0.12", "web-2: []"),
        ["agent.yaml:11: agents.web-2: has no address: write one of IPv4, of IPv6, or of each"]
    );
}

#[test]
fn lists_are_of_the_right_size() {
    assert_eq!(
        with("load_balancers: [10.0.0.1, 2001:db8::/64]", "load_balancers: []"),
        ["agent.yaml:4: load_balancers: is empty: without one no packet is taken out of a tunnel"]
    );
    let many: Vec<String> =
        (0..=ADDRESSES_MAX).map(|n| format!("10.2.{}.{}", n >> 8, n & 255)).collect();
    let many = with("[10.0.0.1, 2001:db8::/64]", &format!("[{}]", many.join(", ")));
    assert_eq!(
        many,
        ["agent.yaml:4: load_balancers: has 4097 addresses, more than 4096: write prefixes"]
    );
}

#[test]
fn what_is_no_config_is_refused_with_its_place() {
    let double = with("mode: native", "interface: eth1");
    assert!(
        double[0].starts_with("agent.yaml:3:1: ") && double[0].contains("duplicated key"),
        "{double:?}"
    );
    assert!(problems("a: [1, 2")[0].starts_with("agent.yaml:"));
    assert!(problems("")[0].contains("has 0 YAML documents"));
    assert!(problems("interface: a\n---\ninterface: b\n")[0].contains("has 2 YAML documents"));
    assert_eq!(problems("- a\n"), ["agent.yaml:1: is no mapping: write `field: value` lines"]);
    assert!(Config::load(Path::new("/no/such/file")).unwrap_err().to_string().contains("--config"));
}

const KEY_FILE: &str = "agent: web-1\nkey_id: \"e6be7b4caf618f9e\"\n\
    message_key: \"4c65e1b200a4b263a901bf92fda2c780d2c9e2a22fc0b013ffab6293fc139a20\"\n\
    bucket_key: \"f6dc7677c4081e9a30a854db2b7a0973\"\n";

/// A config with these lines, and a key file beside it.
fn parse_with_keys(keys: &str, lines: &str) -> Result<Config, Vec<String>> {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("agent.key"), keys).unwrap();
    let file = folder.path().join("agent.yaml").display().to_string();
    let lines = format!("interface: eth0\nvips: [203.0.113.10]\n{lines}");
    let place = format!("{}/", folder.path().display());
    Config::parse(&file, &lines).map_err(|error| {
        error.problems().iter().map(|problem| problem.replace(&place, "")).collect()
    })
}

#[test]
fn with_keys_the_load_balancers_are_the_controllers_unless_others_are_named() {
    let given = "load_balancers: [10.0.0.1, 10.9.0.0/24, 2001:db8::1]\nkey_file: agent.key\n";
    let config = parse_with_keys(KEY_FILE, given).unwrap();
    assert_eq!(config.keys.unwrap().agent, "web-1");
    let expected: Vec<SocketAddr> =
        ["10.0.0.1:9475", "[2001:db8::1]:9475"].map(|text| text.parse().unwrap()).into();
    assert_eq!(config.controllers, expected);
    let named = format!("{given}controllers: [10.0.0.2, \"[2001:db8::2]:99\"]\n");
    let config = parse_with_keys(KEY_FILE, &named).unwrap();
    let expected: Vec<SocketAddr> =
        ["10.0.0.2:9475", "[2001:db8::2]:99"].map(|text| text.parse().unwrap()).into();
    assert_eq!(config.controllers, expected);
}

#[test]
fn a_fifo_in_a_files_place_is_refused_and_hangs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let name = pipe.display().to_string();
    let text = format!(
        "{{interface: eth0, load_balancers: [10.0.0.1], vips: [10.9.0.1], key_file: {name}}}"
    );
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let loaded = [Config::parse("agent.yaml", &text), Config::load(&pipe)];
        sender.send(loaded.map(|config| config.unwrap_err().to_string()))
    });
    let errors = receiver.recv_timeout(Duration::from_secs(10)).expect("it hangs");
    for error in errors {
        let expected = format!("cannot read {name}: is a named pipe: name a regular file; ");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_key_file_may_have_keys_of_other_agents() {
    let given = "load_balancers: [10.0.0.1]\nkey_file: agent.key\n";
    assert_eq!(parse_with_keys(KEY_FILE, given).unwrap().peers, Peers::default());
    let key = "0f".repeat(32);
    let keys = format!("{KEY_FILE}peers:\n  web-2: \"{key}\"\n");
    let peers = parse_with_keys(&keys, given).unwrap().peers;
    assert_eq!(peers, Peers([("web-2".to_string(), [0x0f; 32])].into()));
    assert!(!format!("{peers:?}").contains("15"), "a key in a log");
    let short = keys.replace(&key, &key[2..]);
    let problems = parse_with_keys(&short, given).unwrap_err().join("\n");
    assert!(problems.contains("peers.web-2: is not 64 hexadecimal digits"), "{problems}");
}

#[test]
fn what_is_wrong_with_messages_is_reported() {
    let problems = |keys: &str, lines: &str| parse_with_keys(keys, lines).unwrap_err().join("\n");
    let lbs = "load_balancers: [10.0.0.1]\n";
    let cases = [
        (KEY_FILE, format!("{lbs}controllers: [10.0.0.1]\n"), "need `key_file`"),
        (KEY_FILE, format!("{lbs}key_file: other.key\n"), "cannot read other.key: "),
        (
            KEY_FILE,
            format!("{lbs}key_file: agent.key\ncontrollers: [here]\n"),
            "\"here\" is no address",
        ),
        (
            KEY_FILE,
            "load_balancers: [10.0.0.0/24]\nkey_file: agent.key\n".to_string(),
            "list the load balancers' addresses in `controllers`",
        ),
        (
            KEY_FILE,
            format!("{lbs}key_file: agent.key\nname: web-2\nagents: {{web-2: 10.1.0.12}}\n"),
            "\"web-2\" is another than the key file's: \"web-1\"",
        ),
        ("", format!("{lbs}key_file: agent.key\n"), "agent.key is no key file"),
        ("agent: a\n", format!("{lbs}key_file: agent.key\n"), "`message_key` is missing"),
        (
            "agent: a\nkey_id: \"00\"\nmessage_key: x\nbucket_key: y\n",
            format!("{lbs}key_file: agent.key\n"),
            "agent.key:2: key_id: is not 16 hexadecimal digits",
        ),
    ];
    for (keys, lines, expected) in cases {
        let problems = problems(keys, &lines);
        assert!(problems.contains(expected), "{problems}");
    }
}

fn with_services(list: &str) -> Result<Config, ConfigError> {
    let vips = "vips: [203.0.113.10, '2001:db8:a::/64']";
    let text = format!("interface: eth0\nload_balancers: [10.0.0.1]\n{vips}\nmptcp:{list}");
    Config::parse("agent.yaml", &text)
}

#[test]
fn services_with_multipath_tcp_are_read_each_once_in_order() {
    let list = "\n- {address: '2001:db8:a::1', port: 8443}\n- address: 203.0.113.10\n  port: 443\n";
    let services = with_services(list).unwrap().multipath;
    let expected = ["203.0.113.10:443", "[2001:db8:a::1]:8443"];
    assert_eq!(services, expected.map(|text| text.parse::<SocketAddr>().unwrap()));
    assert!(with_services(" []").unwrap().multipath.is_empty());
}

#[test]
fn what_is_wrong_with_services_of_multipath_tcp_is_reported() {
    let list = "
- {address: 203.0.113.11, port: 443}
- {address: 203.0.113.10, port: 443}
- {address: 203.0.113.10, port: 443}
- {address: here, port: '443'}
- {address: 203.0.113.10, port: 65536, bucket: 1}
- {port: 0}
- 203.0.113.10:443
";
    assert_eq!(
        with_services(list).unwrap_err().problems(),
        [
            "agent.yaml:5: mptcp[0]: 203.0.113.11 is none of `vips`: add it there",
            "agent.yaml:7: mptcp[2]: 203.0.113.10:443 is there twice: remove one",
            "agent.yaml:8: mptcp[3].address: \"here\" is not an address (invalid IP address syntax): write 203.0.113.10 or 2001:db8::10",
            "agent.yaml:8: mptcp[3].port: is no port: write a number from 1 to 65535, without quotes",
            "agent.yaml:9: mptcp[4].bucket: there is no such field; there are: address, port",
            "agent.yaml:9: mptcp[4].port: is no port: write a number from 1 to 65535, without quotes",
            "agent.yaml:10: mptcp[5]: `address` is missing: the VIP, like 203.0.113.10",
            "agent.yaml:10: mptcp[5].port: is no port: write a number from 1 to 65535, without quotes",
            "agent.yaml:11: mptcp[6]: is no mapping: write `field: value` lines",
        ]
    );
}
