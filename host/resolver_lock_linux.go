package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// resolverLock is held by a daemon for as long as it reads and changes how the system resolves names: what another writes meanwhile it
// would take for what was there before, and put that back for good one day. The file stays: who waits for one that
// was removed waits for another than who comes later.
const resolverLock = overlaysDir + "/resolver.lock"

// resolverLockAgain is the pause before a held lock is tried again: other daemons hold it for some milliseconds.
const resolverLockAgain = 5 * time.Millisecond

// lock waits for the machine's other daemons.
func (e *resolverEnv) lock(ctx context.Context) (unlock func() error, err error) {
	path := e.path(resolverLock)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("wire the resolver: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("wire the resolver: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f.Close, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, fmt.Errorf("wire the resolver: lock %s: %w", path, err)
		}
		select {
		case <-time.After(resolverLockAgain):
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wire the resolver: another weft process is at it, and does not end: %w", ctx.Err())
		}
	}
}
