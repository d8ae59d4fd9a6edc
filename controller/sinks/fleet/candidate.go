package fleet

// Every live machine checks a config before it becomes current: the config is offered under
// a key that all machines watch, and each answers under its own key.

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// How long machines may take to check: parser and forwarder take seconds for
	// 10,000 services on a busy machine.
	checkTimeout = 60 * time.Second
	// How often their answers are read.
	checkInterval = 200 * time.Millisecond
	// A candidate whose controller has died makes way after this long.
	candidateTTL = checkTimeout + 30*time.Second
)

// Offer a config whose text is stored. What it returns has the candidate, and
// Commit takes it; Withdraw does so without.
func (s *Store) Offer(ctx context.Context, seen Seen, stored *Config, machine, user string) (Seen, error) {
	if other := seen.Candidate; other != nil {
		return seen, fmt.Errorf("another config is being checked, applied by %s on %s: try again when that has ended, at the latest in %v", other.GetUser(), other.GetMachine(), candidateTTL)
	}
	client, err := s.client()
	if err != nil {
		return seen, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	granted, err := client.Grant(ctx, int64(candidateTTL/time.Second))
	if err != nil {
		return seen, s.explain(err)
	}
	candidate := &fleetv1.Candidate{Config: stored.Current, Machine: machine, User: user}
	put, err := opPut(s.keys.candidate(), candidate, clientv3.WithLease(granted.ID))
	if err != nil {
		return seen, err
	}
	putCurrent, err := opPut(s.keys.current(), seen.Current)
	if err != nil {
		return seen, err
	}
	answer, err := client.Txn(ctx).If(s.unchanged(seen)).Then(put, putCurrent).Commit()
	switch {
	case err != nil:
		return seen, s.explain(err)
	case !answer.Succeeded:
		return seen, ErrChanged
	}
	seen.modRevision, seen.Candidate, seen.CandidateRevision = answer.Header.Revision, candidate, answer.Header.Revision
	return seen, nil
}

// Withdraw a candidate that is not to be committed.
func (s *Store) Withdraw(ctx context.Context, offered Seen) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	_, err = s.transact(ctx, client, clientv3.Compare(clientv3.ModRevision(s.keys.candidate()), "=", offered.CandidateRevision), clientv3.OpDelete(s.keys.candidate()))
	return err
}

// AwaitChecks until every live machine but one, which has checked it itself, has
// answered about the candidate. The error names those that refuse it, and those
// that live and do not answer; notChecked are those that cannot check, and why.
func (s *Store) AwaitChecks(ctx context.Context, offered Seen, but string) (notChecked []string, err error) {
	deadline := time.Now().Add(checkTimeout)
	for {
		machines, err := s.Machines(ctx)
		if err != nil {
			return nil, err
		}
		answers := sortAnswers(machines, offered.CandidateRevision, but)
		switch {
		case len(answers.refused) > 0:
			return nil, fmt.Errorf("refused, and applied nowhere: %s", strings.Join(answers.refused, "; "))
		case len(answers.missing) == 0:
			return answers.notChecked, nil
		case time.Now().After(deadline):
			return nil, fmt.Errorf("applied nowhere: %s registered and not answered within %v: see the log of its controller, or stop it, and apply again", hasWords(answers.missing), checkTimeout)
		}
		pause(ctx, checkInterval)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func hasWords(machines []string) string {
	if len(machines) == 1 {
		return machines[0] + " is"
	}
	return strings.Join(machines, ", ") + " are"
}

// answers of machines about one candidate.
type answers struct{ refused, notChecked, missing []string }

func sortAnswers(machines []*fleetv1.Machine, revision int64, but string) (a answers) {
	for _, m := range machines {
		checked := m.GetChecked()
		switch {
		case m.Name == but:
		case !m.ChecksCandidates:
			a.notChecked = append(a.notChecked, fmt.Sprintf("%s: its version (%s) checks no configs before they are applied", m.Name, m.Version))
		case checked.GetRevision() != revision:
			a.missing = append(a.missing, m.Name)
		case checked.Refusal != "":
			a.refused = append(a.refused, m.Name+" refuses it: "+checked.Refusal)
		case checked.NotChecked != "":
			a.notChecked = append(a.notChecked, m.Name+": "+checked.NotChecked)
		}
	}
	return a
}
