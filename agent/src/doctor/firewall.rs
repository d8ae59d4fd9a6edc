//! Whether the machine's own firewall drops what clients send to a VIP, or what a VIP
//! answers, or sends it elsewhere: nftables' rules, as `nft --json` prints them, walked
//! for one packet.
//!
//! What a rule says of things that are not known here (the client's address, a named
//! set) may be so or not: only what is certain is reported.

use std::net::IpAddr;

use serde_json::Value;
use wire::IpPrefix;

/// Chains that jump to one another deeper than nftables allows (16).
const DEPTH_MAX: usize = 16;

/// The packets that clients and VIPs exchange on one port.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// The service address.
    pub vip: IpAddr,
    /// "tcp" or "udp".
    pub protocol: &'a str,
    /// The VIP's port.
    pub port: u16,
    /// The interface of both directions.
    pub interface: &'a str,
}

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// What a firewall does to an exchange that it should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Harm {
    /// The packets are dropped, by this chain and rule.
    Drops(String),
    /// They go to another address (DNAT), by this chain and rule.
    Translates(String),
}

/// nftables' chains and rules.
pub struct Ruleset {
    items: Vec<Value>,
}

/// How a walk through a chain ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Accepts,
    Drops(String),
    /// Behind its last rule, or by `return`.
    Returns,
}

/// A walk of one packet through the chains of one hook.
struct Walk<'a> {
    ruleset: &'a Ruleset,
    exchange: &'a Exchange<'a>,
    direction: Direction,
    /// A rule accepts what may be this packet.
    may_accept: bool,
    translates: Option<String>,
}

impl Ruleset {
    /// Of what `nft --json list ruleset` prints.
    pub fn parse(printed: &str) -> Result<Ruleset, String> {
        let mut printed: Value =
            serde_json::from_str(printed).map_err(|error| error.to_string())?;
        let items = printed["nftables"].as_array_mut().ok_or("it has no `nftables`")?;
        Ok(Ruleset { items: std::mem::take(items) })
    }

    /// What is done to the packets of an exchange, in both directions.
    pub fn harms(&self, exchange: &Exchange) -> Vec<Harm> {
        let both = [Direction::In, Direction::Out].into_iter();
        both.flat_map(|direction| self.harms_of(exchange, direction)).collect()
    }

    fn harms_of(&self, exchange: &Exchange, direction: Direction) -> Vec<Harm> {
        let mut harms = Vec::new();
        for chain in self.chains().filter(|chain| is_met(chain, exchange, direction)) {
            let mut walk =
                Walk { ruleset: self, exchange, direction, may_accept: false, translates: None };
            let end = match walk.chain(chain, 0) {
                End::Returns if chain["policy"] == "drop" => {
                    End::Drops(format!("{}: policy drop", name(chain)))
                }
                end => end,
            };
            if let End::Drops(by) = end
                && !walk.may_accept
            {
                harms.push(Harm::Drops(by));
            }
            harms.extend(walk.translates.take().map(Harm::Translates));
        }
        harms
    }

    fn chains(&self) -> impl Iterator<Item = &Value> {
        self.items.iter().filter_map(|item| item.get("chain"))
    }

    fn rules<'a>(&'a self, chain: &'a Value) -> impl Iterator<Item = &'a Value> {
        let of_chain = move |rule: &&Value| {
            rule["family"] == chain["family"]
                && rule["table"] == chain["table"]
                && rule["chain"] == chain["name"]
        };
        self.items.iter().filter_map(|item| item.get("rule")).filter(of_chain)
    }
}

fn name(chain: &Value) -> String {
    let word = |field: &str| chain[field].as_str().unwrap_or("?").to_string();
    format!("{} {} {}", word("family"), word("table"), word("name"))
}

/// True for a base chain that the packet comes through.
fn is_met(chain: &Value, exchange: &Exchange, direction: Direction) -> bool {
    let hooks: &[&str] = match direction {
        Direction::In => &["ingress", "prerouting", "input"],
        Direction::Out => &["output", "postrouting", "egress"],
    };
    let family = chain["family"].as_str().unwrap_or_default();
    let is_of_family = match family {
        "ip" => exchange.vip.is_ipv4(),
        "ip6" => exchange.vip.is_ipv6(),
        "netdev" => names(&chain["dev"], exchange.interface),
        family => family == "inet",
    };
    is_of_family && chain["hook"].as_str().is_some_and(|hook| hooks.contains(&hook))
}

/// One name, or a list of them.
fn names(value: &Value, name: &str) -> bool {
    value == name || value.as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Value, depth: usize) -> End {
        for rule in self.ruleset.rules(chain) {
            match self.rule(chain, rule, depth) {
                Some(End::Returns) => return End::Returns,
                Some(end) => return end,
                None => {}
            }
        }
        End::Returns
    }

    /// How a rule ends the walk through its chain; None: the next rule follows.
    fn rule(&mut self, chain: &Value, rule: &Value, depth: usize) -> Option<End> {
        let mut is_certain = true;
        for expression in rule["expr"].as_array()? {
            let (kind, value) = expression.as_object()?.iter().next()?;
            match kind.as_str() {
                "match" => match self.matches(value) {
                    Some(true) => {}
                    Some(false) => return None,
                    None => is_certain = false,
                },
                "counter" | "log" | "comment" | "meta" | "mangle" | "limit" => {
                    is_certain &= kind != "limit";
                }
                "xt" if value["name"] != "DNAT" => is_certain = false,
                "vmap" => return self.map(chain, value, is_certain, depth),
                _ => return self.verdict(chain, kind, value, is_certain, depth),
            }
        }
        None
    }

    fn verdict(
        &mut self,
        chain: &Value,
        kind: &str,
        value: &Value,
        is_certain: bool,
        depth: usize,
    ) -> Option<End> {
        match kind {
            "accept" | "queue" => {
                self.may_accept |= !is_certain;
                is_certain.then_some(End::Accepts)
            }
            "drop" | "reject" => is_certain.then(|| End::Drops(format!("{}: {kind}", name(chain)))),
            "return" => is_certain.then_some(End::Returns),
            "dnat" | "redirect" | "xt" => {
                self.translates = Some(format!("{}: {kind}", name(chain)));
                is_certain.then_some(End::Accepts)
            }
            "jump" | "goto" => self.jump(chain, value, kind == "goto", is_certain, depth),
            _ => None,
        }
    }

    fn jump(
        &mut self,
        chain: &Value,
        to: &Value,
        is_last: bool,
        is_certain: bool,
        depth: usize,
    ) -> Option<End> {
        let target = self.ruleset.chains().find(|other| {
            other["name"] == to["target"]
                && other["table"] == chain["table"]
                && other["family"] == chain["family"]
        });
        let (target, depth) = (target?, depth + 1);
        if depth > DEPTH_MAX {
            return None;
        }
        match self.chain(target, depth) {
            End::Returns if !is_last => None,
            End::Accepts if !is_certain => {
                self.may_accept = true;
                None
            }
            end => is_certain.then_some(end),
        }
    }

    /// A verdict map: the verdict of the key that fits.
    fn map(&mut self, chain: &Value, map: &Value, is_certain: bool, depth: usize) -> Option<End> {
        // A named map is not known here: it may accept.
        let Some(entries) = map["data"]["set"].as_array() else {
            self.may_accept = true;
            return None;
        };
        if !self.has_header(&map["key"]) {
            return None;
        }
        for entry in entries {
            let fits = self.compares(&map["key"], &entry[0]);
            let Some((kind, value)) = entry[1].as_object().and_then(|v| v.iter().next()) else {
                continue;
            };
            let certain = is_certain && fits == Some(true);
            if fits != Some(false)
                && let Some(end) = self.verdict(chain, kind, value, certain, depth)
            {
                return Some(end);
            }
        }
        None
    }

    /// Whether the packet fits; None: it may.
    fn matches(&self, matched: &Value) -> Option<bool> {
        let (left, right) = (&matched["left"], &matched["right"]);
        // What the packet has no field of, no rule about that field fits.
        if !self.has_header(left) {
            return Some(false);
        }
        let fits = self.compares(left, right)?;
        match matched["op"].as_str()? {
            "==" | "in" => Some(fits),
            "!=" => Some(!fits),
            _ => None,
        }
    }

    fn has_header(&self, left: &Value) -> bool {
        let Exchange { vip, protocol, .. } = self.exchange;
        match left["payload"]["protocol"].as_str() {
            Some("ip" | "icmp") if !vip.is_ipv4() => false,
            Some("ip6" | "icmpv6") if !vip.is_ipv6() => false,
            Some("icmp" | "icmpv6" | "sctp" | "dccp" | "arp" | "esp" | "ah") => false,
            Some(of @ ("tcp" | "udp")) => of == *protocol,
            _ => true,
        }
    }

    fn compares(&self, left: &Value, right: &Value) -> Option<bool> {
        fits(&self.field(left)?, right)
    }

    /// What the packet has in this field, as nft spells it; None: not known.
    fn field(&self, left: &Value) -> Option<Value> {
        let Exchange { vip, protocol, port, interface } = *self.exchange;
        let is_in = self.direction == Direction::In;
        let is_v4 = vip.is_ipv4();
        if let Some(field) = left["payload"]["field"].as_str() {
            return match (field, is_in) {
                ("dport", true) | ("sport", false) => Some(port.into()),
                ("daddr", true) | ("saddr", false) => Some(vip.to_string().into()),
                ("protocol" | "nexthdr", _) => Some(protocol.into()),
                _ => None,
            };
        }
        if let Some(key) = left["meta"]["key"].as_str() {
            return match (key, is_in) {
                ("iifname" | "iif", true) | ("oifname" | "oif", false) => Some(interface.into()),
                ("l4proto", _) => Some(protocol.into()),
                ("nfproto", _) => Some(if is_v4 { "ipv4" } else { "ipv6" }.into()),
                ("protocol", _) => Some(if is_v4 { "ip" } else { "ip6" }.into()),
                _ => None,
            };
        }
        if left["ct"]["key"] == "state" {
            return Some(if is_in { "new" } else { "established" }.into());
        }
        let is_type_of_destination =
            left["fib"]["result"] == "type" && left["fib"]["flags"] == serde_json::json!(["daddr"]);
        (is_type_of_destination && is_in).then(|| "local".into())
    }
}

/// Whether a value is what a rule compares it with; None: not known.
fn fits(value: &Value, right: &Value) -> Option<bool> {
    match right {
        Value::String(text) if text.starts_with('@') => None,
        Value::String(text) if text.ends_with('*') => {
            Some(value.as_str()?.starts_with(text.trim_end_matches('*')))
        }
        Value::Array(list) => any(list, value),
        Value::Object(object) => {
            let (kind, inner) = object.iter().next()?;
            match kind.as_str() {
                "set" => any(inner.as_array()?, value),
                "elem" => fits(value, &inner["val"]),
                "range" => {
                    let number = value.as_u64()?;
                    Some((inner[0].as_u64()?..=inner[1].as_u64()?).contains(&number))
                }
                "prefix" => {
                    let prefix = format!("{}/{}", inner["addr"].as_str()?, inner["len"]);
                    let prefix: IpPrefix = prefix.parse().ok()?;
                    Some(prefix.contains(value.as_str()?.parse().ok()?))
                }
                _ => None,
            }
        }
        other => Some(value == other),
    }
}

fn any(list: &[Value], value: &Value) -> Option<bool> {
    let mut is_known = true;
    for one in list {
        match fits(value, one) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => is_known = false,
        }
    }
    is_known.then_some(false)
}
