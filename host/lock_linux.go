package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockFile makes this process the only one that works in the directory of path,
// by an exclusive lock on that file, created where missing. The lock ends with
// unlock or with the process, however that ends; the file stays. When another
// process holds it the error wraps ErrLocked and names that process.
func LockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", filepath.Dir(path), err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder := lockHolder(f)
		f.Close()
		return nil, fmt.Errorf("%s is %w by another weft process%s: stop that one, or choose another directory",
			filepath.Dir(path), ErrLocked, holder)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// For the sentence above alone. A full disk must not keep the lock from
	// being taken.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f.Close, nil
}

func lockHolder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}
