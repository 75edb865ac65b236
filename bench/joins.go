package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"weft"
	"weft/lab"
	"weft/lab/netns"
)

// joinPatience bounds one join.
const joinPatience = 30 * time.Second

// joins has fresh nodes join, both behind port-restricted cones, and measures how long it takes until they
// exchange packets, and until they do so directly.
func (r *overlayRun) joins(ctx context.Context) (err error) {
	if r.Joins == 0 {
		return nil
	}
	l, err := r.lab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	srv, err := l.AddHost("srv")
	if err != nil {
		return err
	}
	var homes [2]*netns.Host
	for i := range homes {
		router, err := l.AddRouter(fmt.Sprintf("nat%d", i), netns.PortRestrictedCone)
		if err != nil {
			return err
		}
		if homes[i], err = router.AddHost(fmt.Sprintf("home%d", i)); err != nil {
			return err
		}
	}
	server, err := lab.Fleet{Binary: r.Binary, Dir: l.Dir()}.StartServer(ctx, srv)
	if err != nil {
		return err
	}
	for i := 1; i <= r.Joins; i++ {
		if err := r.join(ctx, l, server, homes, i); err != nil {
			return fmt.Errorf("join %d: %w", i, err)
		}
	}
	return nil
}

func (r *overlayRun) join(ctx context.Context, l *netns.Lab, server *lab.Server, homes [2]*netns.Host, i int) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	fleet := lab.Fleet{Binary: r.Binary, Dir: filepath.Join(l.Dir(), fmt.Sprintf("join%d", i))}
	names := [2]string{fmt.Sprintf("left%d", i), fmt.Sprintf("right%d", i)}
	token, err := server.Token(ctx, "--reusable")
	if err != nil {
		return err
	}
	left, err := fleet.StartNode(ctx, homes[0], names[0], token)
	if err != nil {
		return err
	}
	defer left.Process.Stop()
	up, err := left.Up(ctx)
	if err != nil {
		return err
	}
	echo, err := startEcho(homes[0], up.Self.Addrs[0])
	if err != nil {
		return err
	}
	defer echo.Close()

	began := time.Now()
	right, err := fleet.StartNode(ctx, homes[1], names[1], token)
	if err != nil {
		return err
	}
	defer right.Process.Stop()
	if err := firstPacket(ctx, homes[1], echo.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		return err
	}
	first := time.Since(began)
	p, err := right.Reaches(ctx, names[0], weft.Direct)
	if err != nil {
		return err
	}
	q, err := left.Reaches(ctx, names[1], weft.Direct)
	if err != nil {
		return err
	}
	both := max(p.DirectAfterMS, q.DirectAfterMS) / 1000
	r.report.Add(nat, toFirst, "s", i, first.Seconds())
	r.report.Add(nat, toDirect, "s", i, both)
	r.say("join %d of %d: first packet after %.2f s, direct on both sides %.2f s after both were up", i, r.Joins, first.Seconds(), both)
	return nil
}

// startEcho answers every datagram to an overlay address with itself.
func startEcho(h *netns.Host, at netip.Addr) (*net.UDPConn, error) {
	c, err := h.ListenUDP(netip.AddrPortFrom(at, 0))
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort(buf[:n], from) // lost is lost: the other end asks again
		}
	}()
	return c, nil
}

// firstPacket sends to the echo until something comes back.
func firstPacket(ctx context.Context, h *netns.Host, to netip.AddrPort) error {
	const every = 5 * time.Millisecond
	c, err := h.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		c.WriteToUDPAddrPort([]byte("first"), to) // there is no route at first
		c.SetReadDeadline(time.Now().Add(every))
		if _, from, err := c.ReadFromUDPAddrPort(buf); err == nil && from.Addr().Unmap() == to.Addr() {
			return nil
		}
	}
	return fmt.Errorf("no packet came back: %w", ctx.Err())
}
