//! The script that `guideway config backend NAME` prints (cli/config/backend.go): shell
//! commands, and after `undo` those that undo them, one in each line.

const FIRST: &str = "# Sets up the backend ";
const UNDO: &str = "if [ \"${1-}\" = undo ]; then";
const UNDO_END: &str = "    exit 0";
const LAST: &str = "# End.";

/// Far more than a backend of 10,000 VIPs needs.
pub const BYTES_MAX: usize = 16 << 20;

/// A script that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script(String);

impl Script {
    /// Takes what was printed; the error says what it is instead.
    pub fn parse(text: String) -> Result<Script, &'static str> {
        if text.len() > BYTES_MAX {
            return Err("is larger than 16 MiB");
        }
        if !text.starts_with(FIRST) || text.contains('\0') {
            return Err("is not what `guideway config backend NAME` prints");
        }
        if !text.lines().any(|line| line == UNDO) {
            return Err("was printed by a former version: print it anew");
        }
        if text.lines().next_back() != Some(LAST) {
            return Err("has no end: it was cut off on its way; print it anew");
        }
        Ok(Script(text))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// The backend's name and address, as the first line has them.
    pub fn backend(&self) -> &str {
        let first = self.0.strip_prefix(FIRST).unwrap_or_default();
        first.split(" of Guideway").next().unwrap_or_default()
    }

    /// The commands that take back what it does, in their order.
    pub fn taken_back(&self) -> impl Iterator<Item = &str> {
        let block = self.0.lines().skip_while(|line| *line != UNDO).skip(1);
        block.take_while(|line| *line != UNDO_END).map(str::trim)
    }

    /// Its commands, without the contents of files, which may be keys.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        let mut is_content = false;
        let after = self.0.lines().skip_while(|line| *line != "set -e").skip(1);
        after.filter(move |line| {
            let is_shown = !is_content && !line.is_empty() && !line.starts_with('#');
            is_content = if is_content { *line != "END" } else { opens_content(line) };
            is_shown
        })
    }

    /// The kernel's settings that it changes, and to what.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.commands().filter_map(|line| line.strip_prefix("sysctl -w "));
        lines.flat_map(|line| line.split(' ').filter_map(|setting| setting.split_once('=')))
    }

    pub fn has_agent(&self) -> bool {
        self.commands().any(|line| line == "systemctl restart guideway-agent")
    }
}

/// Content follows up to END; what is not quoted the shell fills in.
fn opens_content(line: &str) -> bool {
    line.ends_with("<<'END'") || line.ends_with("<<END")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "# Sets up the backend web-1 (10.1.0.11) of Guideway; as root, on it.
if [ \"${1-}\" = undo ]; then
    ip link del gw-gre
    ip address del 203.0.113.10/32 dev lo
    exit 0
fi
set -e

# The VIPs.
ip address replace 203.0.113.10/32 dev lo
sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
install -m 600 /dev/stdin /etc/guideway/agent.key <<'END'
message_key: secret
sysctl -w in.a.file=1
END
nft -f - <<END
table inet guideway
END
systemctl restart guideway-agent
# End.
";

    #[test]
    fn its_parts_are_read_and_contents_of_files_are_not() {
        let script = Script::parse(PRINTED.to_string()).unwrap();
        assert_eq!(script.backend(), "web-1 (10.1.0.11)");
        let taken_back: Vec<&str> = script.taken_back().collect();
        assert_eq!(taken_back, ["ip link del gw-gre", "ip address del 203.0.113.10/32 dev lo"]);
        let commands: Vec<&str> = script.commands().collect();
        assert_eq!(commands.len(), 5, "{commands:?}");
        assert_eq!(commands[3..], ["nft -f - <<END", "systemctl restart guideway-agent"]);
        let settings: Vec<_> = script.settings().collect();
        assert_eq!(
            settings,
            [("net.ipv4.conf.all.arp_ignore", "1"), ("net.ipv4.conf.all.arp_announce", "2")]
        );
        assert!(script.has_agent());
    }

    #[test]
    fn what_is_no_whole_script_is_refused() {
        for (text, problem) in [
            ("", "is not what"),
            ("rm -rf /", "is not what"),
            (&PRINTED[..PRINTED.len() - 3], "has no end"),
            (&PRINTED.replace(UNDO, "if false; then"), "former version"),
            (&PRINTED.replace("web-1", "web\0"), "is not what"),
        ] {
            let refused = Script::parse(text.to_string()).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
