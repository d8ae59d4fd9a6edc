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

/// Statements by which a rule's walk through its chain may end.
const VERDICTS: [&str; 9] =
    ["accept", "queue", "drop", "reject", "return", "dnat", "redirect", "jump", "goto"];

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
    /// Some of them may: the rule depends on what is not known here.
    MayTranslate(String),
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
    /// A rule accepts what may be this packet, or takes it past others.
    may_accept: bool,
    /// In chains that what may be this packet is sent through.
    is_doubtful: bool,
    translates: Option<Harm>,
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
            let mut walk = Walk {
                ruleset: self,
                exchange,
                direction,
                may_accept: false,
                is_doubtful: false,
                translates: None,
            };
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
            harms.extend(walk.translates.take());
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
        // Chains of `inet` have a device where their hook is one's.
        "netdev" | "inet" => chain["dev"].is_null() || names(&chain["dev"], exchange.interface),
        _ => false,
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
            if let Some(end) = self.rule(chain, rule, depth) {
                return end;
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
                "counter" | "log" | "comment" | "meta" | "mangle" => {}
                "xt" if value["name"] == "DNAT" || value["name"] == "REDIRECT" => {
                    return self.verdict(chain, "xt", value, is_certain, depth);
                }
                "vmap" => return self.map(chain, value, is_certain, depth),
                kind if VERDICTS.contains(&kind) => {
                    return self.verdict(chain, kind, value, is_certain, depth);
                }
                // Limits, sets that are added to, extensions of iptables: whether what
                // follows them is done depends on more than this packet.
                _ => is_certain = false,
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
            "return" => {
                self.may_accept |= !is_certain;
                is_certain.then_some(End::Returns)
            }
            "dnat" | "redirect" | "xt" => {
                let by = format!("{}: {kind}", name(chain));
                let is_certain = is_certain && !self.is_doubtful;
                self.translates =
                    Some(if is_certain { Harm::Translates(by) } else { Harm::MayTranslate(by) });
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
        let was_doubtful = self.is_doubtful;
        self.is_doubtful |= !is_certain;
        let end = self.chain(target, depth);
        self.is_doubtful = was_doubtful;
        match end {
            End::Returns if !is_last => None,
            End::Accepts | End::Returns if !is_certain => {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done to TCP to a VIP's port 80 by a chain of those rules, with another
    /// chain `others` to jump to.
    fn harms(hook: &str, policy: &str, rules: &[Value], others: &[Value]) -> Vec<Harm> {
        let base = serde_json::json!({"chain": {
            "family": "inet", "table": "t", "name": "base", "hook": hook, "policy": policy
        }});
        let other =
            serde_json::json!({"chain": {"family": "inet", "table": "t", "name": "others"}});
        let rule = |chain: &str, expr: &Value| serde_json::json!({"rule": {"family": "inet", "table": "t", "chain": chain, "expr": expr}});
        let mut items = vec![base, other];
        items.extend(rules.iter().map(|expr| rule("base", expr)));
        items.extend(others.iter().map(|expr| rule("others", expr)));
        let ruleset =
            Ruleset::parse(&serde_json::json!({ "nftables": items }).to_string()).unwrap();
        let vip = "203.0.113.10".parse().unwrap();
        ruleset.harms(&Exchange { vip, protocol: "tcp", port: 80, interface: "eth0" })
    }

    fn of_some_clients(verdict: Value) -> Value {
        serde_json::json!([
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                       "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}},
            verdict
        ])
    }

    fn of_all(verdict: Value) -> Value {
        serde_json::json!([verdict])
    }

    #[test]
    fn what_is_certain_is_reported() {
        let drop = of_all(serde_json::json!({"drop": null}));
        let dnat = of_all(serde_json::json!({"dnat": {"addr": "172.17.0.2"}}));
        let jump = of_all(serde_json::json!({"jump": {"target": "others"}}));
        let by = |text: &str| format!("inet t {text}");
        assert_eq!(harms("input", "drop", &[], &[]), [Harm::Drops(by("base: policy drop"))]);
        assert_eq!(
            harms("input", "accept", std::slice::from_ref(&jump), &[drop]),
            [Harm::Drops(by("others: drop"))]
        );
        assert_eq!(
            harms("prerouting", "accept", &[jump], &[dnat]),
            [Harm::Translates(by("others: dnat"))]
        );
    }

    #[test]
    fn what_depends_on_the_client_is_no_drop() {
        let drop = of_all(serde_json::json!({"drop": null}));
        let some = |verdict| of_some_clients(verdict);
        for first in [
            some(serde_json::json!({"drop": null})),
            some(serde_json::json!({"accept": null})),
            some(serde_json::json!({"return": null})),
            some(serde_json::json!({"goto": {"target": "others"}})),
            // A statement of no meaning for this packet before a verdict.
            serde_json::json!([{"set": {"op": "add", "elem": "x", "set": "@seen"}}, {"accept": null}]),
        ] {
            let rules = match first[1].get("drop") {
                Some(_) => vec![first],
                None => vec![first, drop.clone()],
            };
            assert_eq!(harms("input", "accept", &rules, &[]), [], "{rules:?}");
        }
    }

    #[test]
    fn a_translation_of_some_is_in_doubt() {
        let dnat = serde_json::json!({"dnat": {"addr": "172.17.0.2"}});
        let jump = of_some_clients(serde_json::json!({"jump": {"target": "others"}}));
        assert_eq!(
            harms("prerouting", "accept", &[of_some_clients(dnat.clone())], &[]),
            [Harm::MayTranslate("inet t base: dnat".to_string())]
        );
        assert_eq!(
            harms("prerouting", "accept", &[jump], &[of_all(dnat)]),
            [Harm::MayTranslate("inet t others: dnat".to_string())]
        );
    }
}
