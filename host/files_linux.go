package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// AllowFiles makes room for n open files in this process (RLIMIT_NOFILE), and says how many there may be. The soft
// limit is the hard one from the start, as Go has it; the hard one is raised where the process may do that
// (CAP_SYS_RESOURCE), and an error says that it may not.
func AllowFiles(n uint64) (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("how many files may be open: %w", err)
	}
	if limit.Cur >= n {
		return limit.Cur, nil
	}
	raised := unix.Rlimit{Cur: n, Max: max(n, limit.Max)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return limit.Cur, fmt.Errorf("only %d files and sockets may be open at once, and up to %d are wanted: raise the limit (ulimit -n, or LimitNOFILE= of the service): %w",
			limit.Cur, n, err)
	}
	return n, nil
}
