package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"weft/host"
)

const (
	// serverPort is where routers hear PCP and NAT-PMP, and clientPort where their announcements go (RFC 6887
	// section 19.4, RFC 6886 section 3.2.1).
	serverPort = 5351
	clientPort = 5350
	// maxAnswer is the longest PCP message in bytes (RFC 6887 section 7).
	maxAnswer = 1100
)

// allHosts is where announcements are sent to.
var allHosts = net.IPv4(224, 0, 0, 1)

// dial opens a socket that hears the gateway's PCP and NAT-PMP port and nothing else.
func dial(g host.Gateway) (*net.UDPConn, error) {
	d := net.Dialer{Control: host.Own, LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.Local, 0))}
	c, err := d.Dial("udp4", netip.AddrPortFrom(g.Addr, serverPort).String())
	if err != nil {
		return nil, fmt.Errorf("asking the router %s: %w", g.Addr, err)
	}
	return c.(*net.UDPConn), nil
}

// ask sends a request until take accepts an answer: with an error of its own, that is the result. It is errNotThere
// where nobody listens or answers.
func ask(ctx context.Context, c *net.UDPConn, t timing, request []byte, take func(answer []byte) (bool, error)) error {
	unblock := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })
	defer unblock()
	buf := make([]byte, maxAnswer)
	wait := t.answer
	for range t.tries {
		if _, err := c.Write(request); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("asking the router: %w", err)
		}
		c.SetReadDeadline(time.Now().Add(wait))
		if ctx.Err() != nil { // which may have come before the deadline was set
			return ctx.Err()
		}
		for {
			n, err := c.Read(buf)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, syscall.ECONNREFUSED):
				return errNotThere
			case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
				return fmt.Errorf("asking the router: %w", err)
			}
			if err != nil {
				break // the next try
			}
			if taken, err := take(buf[:n]); taken {
				return err
			}
		}
		wait *= 2
	}
	return errNotThere
}

// listen hears what routers announce, a restart or another external address, until ctx ends, and passes on who did.
// What is announced is not believed, it is asked for. Without the port the next look finds it.
func listen(ctx context.Context, log *slog.Logger, heard chan<- netip.Addr) {
	c, err := net.ListenMulticastUDP("udp4", nil, &net.UDPAddr{IP: allHosts, Port: clientPort})
	if err != nil {
		log.Debug("announcements of routers are not heard", "error", err)
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, maxAnswer)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Debug("announcements of routers are not heard any more", "error", err)
			return
		}
		if from.Port() != serverPort || !announces(buf[:n]) {
			continue
		}
		select {
		case heard <- from.Addr().Unmap():
		case <-ctx.Done():
			return
		}
	}
}

// announces reports whether a datagram is an announcement of PCP or NAT-PMP.
func announces(b []byte) bool {
	if _, err := parseAddress(b); err == nil {
		return true
	}
	h, err := parsePCP(b)
	return err == nil && h.op == opAnnounce
}

// epochs compares a router's clock with ours: a router that lost its mappings begins anew (RFC 6887 section 8.5,
// whose tolerance is RFC 6886's too, section 3.6).
type epochs struct {
	server uint32
	at     time.Time // zero: none was heard yet
}

// lost takes in the seconds since a router's start and reports whether it was started again since the last time.
func (e *epochs) lost(server uint32, now time.Time) bool {
	before, at := e.server, e.at
	e.server, e.at = server, now
	if at.IsZero() {
		return false
	}
	if uint64(server)+1 < uint64(before) {
		return true
	}
	client, delta := int64(now.Sub(at)/time.Second), int64(server)-int64(before)
	return client+2 < delta-delta/16 || delta+2 < client-client/16
}
