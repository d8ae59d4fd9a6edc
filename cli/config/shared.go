package config

// The part of a config that machines share through etcd, separate from each machine's
// files.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
)

// whole loads files as their controllers would: of a machine that shares its config, with
// the part that all share; of several machines for each, or for the one of this name.
func whole(ctx context.Context, name string) func(...string) (*config.Config, error) {
	return func(files ...string) (*config.Config, error) {
		sources, err := config.Read(files...)
		if err != nil {
			return nil, err
		}
		names := config.MachinesOf(sources)
		if name != "" || len(names) == 0 {
			names = []string{name}
		}
		var here, c *config.Config // of this machine, if it is among them
		for _, machine := range names {
			if c, err = wholeOf(ctx, machine, slices.Clone(sources)); err != nil {
				return nil, err
			}
			if here == nil || machine == config.HostName() {
				here = c
			}
		}
		return here, nil
	}
}

func wholeOf(ctx context.Context, machine string, sources []config.Source) (*config.Config, error) {
	reader := config.Reader{Machine: machine, ReadFile: config.ReadFromDisk}
	settings, err := reader.EtcdOf(sources)
	if err == nil && settings != nil && !config.MarkShared(sources) {
		sources, err = withStored(ctx, *settings, sources)
	}
	if err != nil {
		return nil, err
	}
	return reader.Parse(sources)
}

// withStored adds what etcd holds for all machines.
func withStored(ctx context.Context, settings config.Etcd, own []config.Source) ([]config.Source, error) {
	store := fleet.NewStore(settings)
	defer store.Close()
	seen, err := store.See(ctx)
	if err == nil && seen.Current == nil {
		err = errors.New("it holds no config yet (`guideway config seed`)")
	}
	var stored *fleet.Config
	if err == nil {
		stored, err = store.Fetch(ctx, seen.Current)
	}
	if err != nil {
		return nil, fmt.Errorf("the files are one machine's own, and the part that all machines share is in etcd: %w: to check without etcd, give a file with that part, too", err)
	}
	return append(own, stored.Source(settings.Cluster)), nil
}
