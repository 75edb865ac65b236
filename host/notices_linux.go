package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// notices has take see what the kernel says of groups of this network namespace's interfaces, and none when it dropped some. It ends, and
// calls done, with ctx, or when they cannot be read any more; then consequence is logged.
func notices(ctx context.Context, consequence string, take func([]syscall.NetlinkMessage), done func(), groups ...uint) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return fmt.Errorf("watch network interfaces: %w", err)
	}
	go func() {
		defer done()
		defer s.Close()
		defer context.AfterFunc(ctx, s.Close)()
		for {
			msgs, _, err := s.Receive()
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			case errors.Is(err, unix.ENOBUFS):
				take(nil)
			case err != nil:
				slog.Error(consequence, "err", err)
				return
			default:
				take(msgs)
			}
		}
	}()
	return nil
}
