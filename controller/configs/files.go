package configs

// A config in this machine's files alone. Applying a config replaces the one file that
// contains it. The client writes that file with its own rights, because the controller
// cannot write in /etc and need not; for a client over TCP the controller writes it. The
// checks stay valid until the end because no other config is loaded meanwhile.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

type files struct{ *Configs }

func (f files) offer(context.Context, bool) *Config { return f.readOwn(nil) }

// parseSent as the one config file, where that can be replaced: paths in it begin at that
// file's directory; mistakes are told of the client's file.
func (f files) parseSent(sent []config.Source) (*config.Config, error) {
	target, err := f.path()
	if err != nil || len(sent) != 1 {
		return f.reader().Parse(sent)
	}
	parsed, err := f.reader().Parse([]config.Source{{Name: target, Data: sent[0].Data}})
	if refusal := (*config.Refusal)(nil); errors.As(err, &refusal) {
		return nil, &config.Refusal{Errors: renamed(refusal.Errors, sent[0].Name), Warnings: renamed(refusal.Warnings, sent[0].Name)}
	}
	if err != nil {
		return nil, err
	}
	parsed.Warnings = renamed(parsed.Warnings, sent[0].Name)
	return parsed, nil
}

func renamed(problems config.Problems, file string) config.Problems {
	var told config.Problems
	for _, p := range problems {
		p.File = file
		told = append(told, p)
	}
	return told
}

// path of the one file that is the config, links followed.
func (f files) path() (string, error) {
	const cure = "edit the files and `guideway reload`"
	if n := len(f.settings.Files); n != 1 {
		return "", api.Unmetf("the controller's config is %d files or directories, of which none alone can be replaced: %s", n, cure)
	}
	path, err := filepath.Abs(f.settings.Files[0])
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", api.Unmetf("the controller's config file: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", api.Unmetf("the controller's config file: %w", err)
	case info.IsDir():
		return "", api.Unmetf("the controller's config is the directory %s, which is not replaced: %s", path, cure)
	}
	return path, nil
}

// replacing is a config on its way into the file.
type replacing struct {
	files
	order  *controllerv1.ApplyOrder
	path   string
	digest string // of what the file holds before
	edited bool   // which never ran
	data   []byte
	file   *Replacement // nil: nothing is written here
	record Record
	used   bool
	unlock func() // nil: closed
}

func (f files) begin(ctx context.Context, user string, order *controllerv1.ApplyOrder, sent config.Source, parsed *config.Config) (api.Applying, error) {
	if order.GetCanary() != "" {
		return nil, errors.New("--canary has one machine of several run a config first, and this machine's config is in files alone: apply without it")
	}
	path, err := f.path()
	if err != nil {
		return nil, err
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	r := &replacing{files: f, order: order, path: path, data: sent.Data, unlock: unlock}
	if err := r.check(ctx, parsed); err != nil {
		unlock()
		return nil, err
	}
	r.record, err = f.history.Prepare(NewRecord(originOf(user, order), []config.Source{{Name: path, Data: sent.Data}}, time.Now()))
	if err != nil {
		unlock()
		return nil, api.Unmetf("%w: nothing is applied that cannot be recorded: make room in %s, or edit %s and `guideway reload`", err, f.settings.Store.Dir, path)
	}
	return r, nil
}

// check that the config may follow, that what it follows is what the order was given for,
// and that no edit of the file is lost: one that never ran is overwritten by itself or,
// put aside, by a rollback.
func (r *replacing) check(ctx context.Context, parsed *config.Config) error {
	var problem error
	err := r.host.Ask(ctx, func() {
		if problem = r.checkRunning(r.order); problem == nil {
			problem = r.CheckNext(parsed)
		}
	})
	if err = errors.Join(err, problem); err != nil {
		return err
	}
	held, err := config.Read(r.path)
	if err != nil {
		return api.Unmetf("%w", err)
	}
	inUse := r.InUse()
	r.digest = DigestOf(held)
	r.edited = r.digest != inUse.digest && r.digest != DigestOf([]config.Source{{Data: r.data}})
	if r.edited && r.order.GetRollbackTo() == 0 {
		return api.Unmetf("%s was edited since it was loaded, and is not overwritten: `guideway config apply %s` brings the edit into use, `guideway config rollback %d` puts it aside", r.path, r.path, r.numberOf(inUse))
	}
	return nil
}

// File is the one to be replaced.
func (r *replacing) File() api.File { return r }

// Target is its path, the digest of what it holds, and whether that is an edit that
// never ran.
func (r *replacing) Target() (path, digest string, edited bool) { return r.path, r.digest, r.edited }

// Commit loads the file, which was written, and returns when the forwarder has accepted
// its plan.
func (r *replacing) Commit(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	r.settings.Notify.Reloading()
	defer r.settings.Notify.Ready()
	offered := r.readOwn(nil)
	if offered.problem == nil && offered.digest != r.record.Digest {
		return nil, api.Unmetf("%s does not hold what was sent", r.path)
	}
	offered.origin, offered.record = r.record.Origin, &r.record
	var problem error
	err := r.host.Ask(ctx, func() {
		if problem = r.checkRunning(r.order); problem == nil {
			problem = r.load(offered)
			r.used = problem == nil
			r.tell(problem, r.record.User)
		}
	})
	if err = errors.Join(err, problem); err != nil {
		return nil, err
	}
	response, err := r.AwaitAccepted(ctx)
	if err == nil {
		_ = r.settings.Keeper.Await(ctx, inUseName) // the state says why it is not kept
		response.Number = r.history.NumberOf(r.record.Digest)
	}
	return response, err
}

// Write the file with the controller's own rights.
func (r *replacing) Write() error {
	file, err := NewReplacement(r.path, r.digest, r.data)
	if err == nil && file.ChangesNothing() {
		return nil
	}
	if err == nil && r.edited {
		var aside string
		aside, err = file.PutAside()
		r.log.Warn("the config file held an edit that never ran", "kept_in", aside)
	}
	if err == nil {
		err = file.Write()
	}
	if err != nil {
		return api.Unmetf("%w: over TCP the controller writes it with its own rights: let its user write in %s (its unit: ReadWritePaths=), or apply on the machine", err, filepath.Dir(r.path))
	}
	r.file = file
	return nil
}

// PutBack the former file after a refusal. Where the outcome is not known, the
// file stays: it may be what runs.
func (r *replacing) PutBack(ctx context.Context, reason error) error {
	if r.file == nil || errors.Is(reason, context.Canceled) || errors.Is(reason, context.DeadlineExceeded) {
		return reason
	}
	if err := r.file.PutBack(); err != nil {
		return api.Unmetf("%w; and the former config could not be put back: %w", reason, err)
	}
	r.Close()
	// What was loaded is gone: the former is read again.
	err := r.Reload(ctx, r.record.User, false)
	return api.Unmetf("%w; %s holds the former config again", errors.Join(reason, err), r.path)
}

// Close lets others change the config.
func (r *replacing) Close() {
	if r.unlock == nil {
		return
	}
	if !r.used {
		r.history.Discard(r.record)
	}
	r.unlock()
	r.unlock = nil
}

func (f files) list(context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	return f.history.List(f.InUse().digest), nil
}

func (f files) get(_ context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	if number == 0 {
		if number = f.history.NumberOf(f.InUse().digest); number == 0 {
			return nil, fmt.Errorf("the one in use: %w", api.ErrUnknownConfig)
		}
	}
	return f.history.Get(number)
}
