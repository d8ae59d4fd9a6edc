package fleet

import (
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/config"
)

// guideway executes a command line of these verbs; a canary is ended by `config`.
func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, clitest.Program(Command(), config.Command()), args...)
}
