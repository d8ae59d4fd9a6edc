//! The handshakes' requirements of the kernel, checked when the agent starts, and by
//! doctor.

use std::fs::OpenOptions;
use std::io;

use crate::config::Config;

/// By which SYN cookies are switched.
pub const SYN_COOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// Where the kernel makes TUN devices.
const TUN: &str = "/dev/net/tun";

/// What was found, in the network namespace of the calling thread.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// As `uname -r` prints it.
    release: String,
    /// The hooks that the programs at ingress and egress take.
    has_tc_links: bool,
    /// `net.mptcp.enabled`; None: this kernel has no Multipath TCP.
    mptcp: Option<u32>,
    /// `net.ipv4.tcp_syncookies`; None: this kernel has none.
    syn_cookies: Option<u32>,
    /// Why it cannot be changed.
    fixed: Option<String>,
    /// `net.ipv4.tcp_timestamps`.
    timestamps: Option<u32>,
    /// `net.ipv4.conf.all.rp_filter`.
    rp_filter: Option<u32>,
    /// Why no TUN device can be made.
    no_tun: Option<String>,
}

/// Something that is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Connections of Multipath TCP become plain ones by it; else it costs little.
    pub is_fatal: bool,
    /// What it is.
    pub text: String,
    /// What to do.
    pub cure: String,
}

impl Kernel {
    /// Looks at all of it; changes nothing.
    #[must_use]
    pub fn read() -> Kernel {
        let system = rustix::system::uname();
        Kernel {
            release: system.release().to_string_lossy().into_owned(),
            has_tc_links: ebpf::has_tc_links(),
            mptcp: number("/proc/sys/net/mptcp/enabled"),
            syn_cookies: number(SYN_COOKIES),
            fixed: why_not(OpenOptions::new().write(true), SYN_COOKIES),
            timestamps: number("/proc/sys/net/ipv4/tcp_timestamps"),
            rp_filter: number("/proc/sys/net/ipv4/conf/all/rp_filter"),
            no_tun: why_not(OpenOptions::new().read(true).write(true), TUN),
        }
    }

    /// What is wrong with it for this config's services.
    #[must_use]
    pub fn problems(&self, config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |is_fatal, text: String, cure: &str| {
            problems.push(Problem { is_fatal, text, cure: cure.to_string() });
        };
        if !self.has_tc_links {
            problem(
                true,
                format!("Linux {} has no hooks for the programs of mptcp", self.release),
                "it takes Linux 6.6",
            );
        }
        match self.mptcp {
            None => problem(
                true,
                "this kernel has no Multipath TCP".to_string(),
                "it takes one with CONFIG_MPTCP (and for IPv6 CONFIG_MPTCP_IPV6)",
            ),
            Some(0) => {
                problem(true, "net.mptcp.enabled is 0".to_string(), "sysctl -w net.mptcp.enabled=1")
            }
            Some(_) => {}
        }
        match (self.syn_cookies, &self.fixed) {
            (None, _) => problem(
                true,
                "this kernel has no SYN cookies, by which it takes the load balancers' keys"
                    .to_string(),
                "it takes one with CONFIG_SYN_COOKIES",
            ),
            (Some(_), Some(reason)) => problem(
                true,
                format!("tcp_syncookies cannot be switched: {reason}"),
                "give the agent CAP_NET_ADMIN and a writable /proc/sys (systemd: ProtectKernelTunables=no)",
            ),
            (Some(1), None) => {}
            (Some(value), None) => problem(
                value == 0,
                format!("tcp_syncookies is {value}; the agent requires 1"),
                "sysctl -w net.ipv4.tcp_syncookies=1",
            ),
        }
        if self.timestamps == Some(0) {
            problem(
                false,
                "tcp_timestamps is 0: packets of these services go by their five-tuple".to_string(),
                "sysctl -w net.ipv4.tcp_timestamps=1",
            );
        }
        let has_v4 = config.multipath.iter().any(|service| service.is_ipv4());
        if let Some(filter @ 1..) = self.rp_filter.filter(|_| has_v4) {
            problem(
                true,
                format!(
                    "net.ipv4.conf.all.rp_filter is {filter}, and the kernel drops SYNs that the agent gives it by a TUN device"
                ),
                "sysctl -w net.ipv4.conf.all.rp_filter=0, and set it for each interface that needs it",
            );
        }
        if let Some(reason) = &self.no_tun {
            problem(
                true,
                format!("{TUN} cannot be opened ({reason})"),
                "modprobe tun; in a container, give it the device",
            );
        }
        problems
    }
}

/// How SYN cookies are switched now.
pub fn syn_cookies() -> Option<u32> {
    number(SYN_COOKIES)
}

/// SYN cookies that the kernel has sent in this network namespace.
pub fn cookies_sent() -> Option<u64> {
    counter("netstat", "TcpExt", "SyncookiesSent")
}

/// A counter of this network namespace: of a file in /proc/net, of a group there.
pub fn counter(file: &str, group: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/net/{file}")).ok()?;
    let group = format!("{group}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group.as_str()));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|known| known == name)?;
    values.split(' ').nth(at)?.parse().ok()
}

fn number(file: &str) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn why_not(options: &OpenOptions, file: &str) -> Option<String> {
    options.open(file).err().map(|error: io::Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(service: &str) -> Config {
        let text = format!(
            "{{interface: eth0, load_balancers: [10.0.0.1], vips: [203.0.113.10, '2001:db8::1'], mptcp: [{{address: '{service}', port: 443}}]}}"
        );
        Config::parse("agent.yaml", &text).unwrap()
    }

    fn good() -> Kernel {
        Kernel {
            release: "6.1.0".to_string(),
            has_tc_links: true,
            mptcp: Some(1),
            syn_cookies: Some(1),
            fixed: None,
            timestamps: Some(1),
            rp_filter: Some(0),
            no_tun: None,
        }
    }

    #[test]
    fn each_thing_that_is_wrong_is_found_by_itself() {
        let config = config("203.0.113.10");
        assert_eq!(good().problems(&config), []);
        let denied = || Some("Permission denied".to_string());
        let cases = [
            (Kernel { has_tc_links: false, ..good() }, true, "Linux 6.1.0", "6.6"),
            (Kernel { mptcp: None, ..good() }, true, "no Multipath TCP", "CONFIG_MPTCP"),
            (Kernel { mptcp: Some(0), ..good() }, true, "is 0", "net.mptcp.enabled=1"),
            (Kernel { syn_cookies: None, ..good() }, true, "no SYN cookies", "CONFIG_SYN"),
            (Kernel { syn_cookies: Some(0), ..good() }, true, "is 0", "tcp_syncookies=1"),
            (Kernel { syn_cookies: Some(2), ..good() }, false, "is 2", "tcp_syncookies=1"),
            (Kernel { fixed: denied(), ..good() }, true, "Permission", "CAP_NET_ADMIN"),
            (Kernel { timestamps: Some(0), ..good() }, false, "is 0", "tcp_timestamps=1"),
            (Kernel { rp_filter: Some(2), ..good() }, true, "is 2", "all.rp_filter=0"),
            (Kernel { no_tun: denied(), ..good() }, true, "/dev/net/tun", "modprobe tun"),
        ];
        for (kernel, is_fatal, text, cure) in cases {
            let problems = kernel.problems(&config);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(problems[0].is_fatal, is_fatal, "{problems:?}");
            assert!(problems[0].text.contains(text), "{problems:?}");
            assert!(problems[0].cure.contains(cure), "{problems:?}");
        }
    }

    #[test]
    fn ipv6_knows_no_reverse_path_filter() {
        let kernel = Kernel { rp_filter: Some(1), ..good() };
        assert_eq!(kernel.problems(&config("2001:db8::1")), []);
    }
}
