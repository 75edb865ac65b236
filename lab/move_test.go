package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// A call is numbered datagrams, one in callEvery, that go to a peer and come back.
type call struct {
	conn *net.UDPConn
	sent atomic.Uint64
	came atomic.Uint64
	stop chan struct{}
	done chan error
}

const callEvery = time.Millisecond

func (w *world) call(from, to *netns.Host, addr netip.Addr) *call {
	w.t.Helper()
	echo, err := to.ListenUDP(netip.AddrPortFrom(addr, 0))
	if err != nil {
		w.t.Fatal(err)
	}
	at := netip.AddrPortFrom(addr, echo.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	w.t.Cleanup(func() { echo.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			echo.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	conn, err := from.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	c := &call{conn: conn, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		tick := time.NewTicker(callEvery)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
				n := c.sent.Add(1)
				conn.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, n), at)
			}
		}
	}()
	go func() {
		buf := make([]byte, 64)
		seen := map[uint64]bool{}
		for {
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.done <- nil
				return
			}
			if err == nil && (n != 8 || seen[binary.BigEndian.Uint64(buf)]) {
				err = fmt.Errorf("%x came twice, or is nothing that was sent", buf[:n])
			}
			if err != nil {
				c.done <- err
				return
			}
			seen[binary.BigEndian.Uint64(buf)] = true
			c.came.Add(1)
		}
	}()
	return c
}

// goesOn waits until so many more have come back.
func (c *call) goesOn(w *world, more uint64) {
	w.t.Helper()
	want := c.came.Load() + more
	if err := netns.WaitFor(w.ctx, "the call to go on", func() error {
		if came := c.came.Load(); came < want {
			return fmt.Errorf("%d of %d came back", came, want)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// end stops sending, waits for what is on its way, and returns what was lost.
func (c *call) end(t *testing.T) (lost, sent uint64) {
	t.Helper()
	close(c.stop)
	c.conn.SetReadDeadline(time.Now().Add(time.Second))
	if err := <-c.done; err != nil {
		t.Error(err)
	}
	return c.sent.Load() - c.came.Load(), c.sent.Load()
}

func TestNoPacketIsLostInTheMoveFromTheRelayToADirectPath(t *testing.T) {
	w := newWorld(t)
	gwA, hostA := w.home("ann", netns.PortRestrictedCone)
	gwB, hostB := w.home("bob", netns.PortRestrictedCone)
	if err := gwA.BlockUDPBetween(hostA.Addr(), gwB.Addr()); err != nil {
		t.Fatal(err)
	}
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
	w.reaches(a, "bob", weft.RelayUDP)
	w.reaches(b, "ann", weft.RelayUDP)
	c := w.call(hostA, hostB, addrB)
	if err := gwA.Unblock(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	if err := netns.WaitFor(w.ctx, "some packets by the direct path", func() error {
		if p, err := b.Peer(w.ctx, "ann"); err != nil || p.Path != weft.PathDirect || c.came.Load() < 200 {
			return fmt.Errorf("%d came, by %s (%v)", c.came.Load(), p.Path, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	lost, sent := c.end(t)
	t.Logf("%d of %d lost", lost, sent)
	if lost != 0 {
		t.Errorf("%d of %d packets were lost", lost, sent)
	}
}

func TestASilentBlackHoleCostsASecondAndAHalfAtMostAndTheWayBackNothing(t *testing.T) {
	w := newWorld(t)
	gwA, gwB, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	down := w.call(a.Host, b.Host, addrB)
	down.goesOn(w, 500)
	if err := gwA.BlockUDPBetween(a.Host.Addr(), gwB.Addr()); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.RelayUDP)
	w.reaches(b, "ann", weft.RelayUDP)
	down.goesOn(w, 500)
	lost, sent := down.end(t)
	t.Logf("down to the relay: %d of %d lost, at one in %v", lost, sent, callEvery)
	if time.Duration(lost)*callEvery > 1500*time.Millisecond {
		t.Errorf("a silent direct path cost %v of packets", time.Duration(lost)*callEvery)
	}
	up := w.call(a.Host, b.Host, addrB)
	if err := gwA.Unblock(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	up.goesOn(w, 500)
	lost, sent = up.end(t)
	t.Logf("up again: %d of %d lost", lost, sent)
	if lost != 0 {
		t.Errorf("%d of %d packets were lost on the way back", lost, sent)
	}
}

func TestNetcheckTellsWhatTheNATDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gw, hostA := w.home("ann", netns.PortRestrictedCone)
	a := w.node(hostA)
	w.up(a)
	n, err := a.Netcheck(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !n.UDP || !n.IPv4.Works || n.IPv4.Mapped.Addr() != gw.Addr() || len(n.Relays) != 1 || n.Relays[0].UDPms <= 0 || n.Relays[0].Stream != "upgrade" {
		t.Errorf("behind a NAT: %+v", n)
	}
	if s, err := a.Status(w.ctx); err != nil || !s.Self.Relays[0].Stream || s.Self.Relays[0].Error != "" {
		t.Errorf("the check took the node's own stream away: %+v (%v)", s.Self.Relays, err)
	}
	if err := gw.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	if n, err = a.Netcheck(w.ctx); err != nil {
		t.Fatal(err)
	}
	if n.UDP || len(n.Problems) == 0 || n.Relays[0].Stream != "upgrade" {
		t.Errorf("with UDP blocked: %+v", n)
	}
}
