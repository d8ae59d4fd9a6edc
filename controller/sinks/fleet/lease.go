package fleet

// Leases: data stored with one disappears some seconds after its holder does.

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// A holder that dies, or is cut off from etcd, is missed after this long.
	leaseTTL = 15 * time.Second
	// A lease is renewed so often within its time: two renewals may fail before it ends.
	leaseRenewals = 3
)

// lease of one holder, whose goroutine alone uses it.
type lease struct {
	store *Store
	// The holder is missed after that long.
	ttl time.Duration
	// 0: none, or it has ended.
	id      clientv3.LeaseID
	renewed time.Time
}

// hold the lease: it is granted, or renewed where that is due. isNew: keys are to
// be put by it anew, as those of the former one are gone, or will be.
func (l *lease) hold(ctx context.Context) (isNew bool, err error) {
	client, err := l.store.client()
	if err != nil {
		return false, err
	}
	if l.id != 0 && time.Since(l.renewed) < l.ttl/leaseRenewals {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	if l.id != 0 {
		_, err := client.KeepAliveOnce(ctx, l.id)
		if err == nil {
			l.renewed = now
			return false, nil
		}
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return false, l.store.explain(err)
		}
		l.id = 0
	}
	granted, err := client.Grant(ctx, int64(l.ttl/time.Second))
	if err != nil {
		return false, l.store.explain(err)
	}
	l.id, l.renewed = granted.ID, now
	return true, nil
}

// end the lease, and with it the keys that were put by it.
func (l *lease) end(ctx context.Context) error {
	if l.id == 0 {
		return nil
	}
	client, err := l.store.client()
	if err != nil {
		return err
	}
	_, err = client.Revoke(ctx, l.id)
	l.id = 0
	return l.store.explain(err)
}
