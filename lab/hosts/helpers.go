package hosts

import (
	"context"
	"os/exec"
	"path/filepath"
	"syscall"
)

// HelperVerb of guideway-lab holds the programs of its own that a lab runs in
// its namespaces.
const HelperVerb = "helper"

const labProgram = "guideway-lab"

// LoadCommand is the clients, as a process in their namespace (see
// load.StartRemote). Ctrl-C does not reach it: it ends when its input does, or by the
// context, and with it what waits for its answer.
func (lab *Lab) LoadCommand(ctx context.Context) *exec.Cmd {
	program := filepath.Join(lab.state.Options.BinDir, labProgram)
	command := exec.CommandContext(ctx, "ip", "netns", "exec", lab.Network.Client.Namespace, program, HelperVerb, "load")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return command
}
