package drain

import (
	"testing"

	"github.com/guideway/guideway/cli/clitest"
)

// guideway executes a command line of these verbs.
func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, clitest.Program(Command(), UndrainCommand()), args...)
}
