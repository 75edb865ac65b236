package stun

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Serve answers binding requests on conns with r until ctx ends, and returns nil
// then. With Alternates in r, conns are the four sockets, bound to their exact
// addresses. Serve reads the sockets alone and leaves them open; the first one
// that can't be read any more ends the service with an error.
func Serve(ctx context.Context, r *Responder, conns ...net.PacketConn) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	byAddr := make(map[netip.AddrPort]net.PacketConn, len(conns))
	for _, c := range conns {
		byAddr[addrPort(c.LocalAddr())] = c
	}
	interrupted := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		for _, c := range conns {
			c.SetReadDeadline(time.Unix(1, 0)) // wakes a blocked read
		}
	})
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for _, c := range conns {
		wg.Go(func() {
			if err := serve(ctx, r, c, byAddr); err != nil {
				once.Do(func() { first = err })
				stop()
			}
		})
	}
	wg.Wait()
	if !keep() {
		<-interrupted
	}
	for _, c := range conns {
		c.SetReadDeadline(time.Time{})
	}
	return first
}

func serve(ctx context.Context, r *Responder, c net.PacketConn, byAddr map[netip.AddrPort]net.PacketConn) error {
	local := addrPort(c.LocalAddr())
	in := make([]byte, 64<<10) // the largest UDP datagram
	out := make([]byte, 0, MaxReply)
	for {
		n, from, err := c.ReadFrom(in)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
			continue // an earlier reply found nobody there
		case err != nil:
			return fmt.Errorf("stun: can't read requests at %v any more: %w", c.LocalAddr(), err)
		}
		reply, ok := r.Respond(out, in[:n], addrPort(from), local)
		if !ok {
			continue
		}
		via := c
		if reply.From != local {
			if via = byAddr[reply.From]; via == nil {
				continue // r names a socket that is not among conns
			}
		}
		// A reply that can't be sent is a reply lost: the client asks again.
		via.WriteTo(reply.Packet, net.UDPAddrFromAddrPort(reply.To))
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if u, ok := a.(*net.UDPAddr); ok {
		ap := u.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}
