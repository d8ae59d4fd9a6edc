package web

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// begin tasks that end with the test.
func begin(t *testing.T) Begin {
	var tasks sync.WaitGroup
	t.Cleanup(tasks.Wait)
	return func(task func(context.Context)) { tasks.Go(func() { task(t.Context()) }) }
}

func TestAPageIsMadeOnceForAllWhoAskWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times atomic.Int32
		p := NewShared(begin(t), pageAge, func(context.Context) ([]byte, int, error) {
			time.Sleep(100 * time.Millisecond)
			times.Add(1)
			return []byte("content"), 7, nil
		})
		var clients sync.WaitGroup
		for range 200 {
			clients.Go(func() {
				for range 20 {
					content, release, err := p.Get(t.Context())
					if string(content) != "content" || err != nil {
						t.Errorf("%q, %v", content, err)
					}
					release()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		clients.Wait()
		if n := times.Load(); n < 2 || n > 3 {
			t.Errorf("made %d times in 2.1 s", n)
		}
	})
}

func TestAPageThatTakesLongIsNotBegunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times atomic.Int32
		p := NewShared(begin(t), pageAge, func(ctx context.Context) ([]byte, int, error) {
			times.Add(1)
			<-ctx.Done()
			return nil, 0, ctx.Err()
		})
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), pageTimeout/20)
			if _, _, err := p.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			cancel()
		}
		if _, _, err := p.Get(t.Context()); !errors.Is(err, errTooSlow) {
			t.Errorf("error %v", err)
		}
		if n := times.Load(); n != 1 {
			t.Errorf("begun %d times", n)
		}
	})
}

func TestPagesThatSlowClientsStillReadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times int
		p := NewShared(begin(t), pageAge, func(context.Context) ([]byte, int, error) {
			times++
			return []byte(strings.Repeat("x", pagesBytesMax/3)), pagesBytesMax / 3, nil
		})
		var releases []func()
		for range 20 { // a slow client a second
			_, release, err := p.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
			time.Sleep(pageAge)
		}
		if times != 4 {
			t.Errorf("%d pages in memory", times)
		}
		for _, release := range releases {
			release()
		}
		_, release, _ := p.Get(t.Context())
		release()
		if times != 5 || p.bytes != pagesBytesMax/3 {
			t.Errorf("%d pages made, %d bytes in memory", times, p.bytes)
		}
	})
}
