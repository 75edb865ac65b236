package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft"
	"weft/lab/netns"
)

// meeting starts a rendezvous with its relay in a host, told nothing of where it is.
func (w *world) meeting(h *netns.Host) *netns.Process {
	w.t.Helper()
	p, err := h.Start(h.Command(w.ctx, w.fleet.Binary, "server", "--rendezvous-only", "--data", filepath.Join(w.fleet.Dir, "rendezvous")))
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// The two nodes of the document that the idea comes from, each behind a NAT, with its addresses, and iperf3 as it runs it.
func TestTwoMachinesWithTwoWordsMeetBehindTheirNATs(t *testing.T) {
	w := newNet(t)
	iex := w.must(w.net.AddHost("iex"))
	server := w.meeting(iex)
	words := filepath.Join(w.fleet.Dir, "words")
	if err := os.WriteFile(words, []byte("badger:psk-key-of-some-length\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gwA, hostA := w.home("ann", netns.PortRestrictedCone)
	gwB, hostB := w.home("bob", netns.PortRestrictedCone)
	if err := gwA.BlockUDPBetween(hostA.Addr(), gwB.Addr()); err != nil {
		t.Fatal(err)
	}
	start := func(h *netns.Host, name, address string) *Node {
		t.Helper()
		n, err := w.fleet.StartNode(w.ctx, h, name, "", "--secret", words, "--rendezvous", iex.Addr().String(), "--address", address)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	a, b := start(hostA, "ann", "10.0.0.10/16"), start(hostB, "bob", "10.0.0.20/16")
	addrB := w.up(b).Self.Addrs[0]
	if addrA := w.up(a).Self.Addrs[0]; addrA.String() != "10.0.0.10" || addrB.String() != "10.0.0.20" {
		t.Fatalf("they are %v and %v", addrA, addrB)
	}

	// The relay beside the rendezvous carries them while there is no other way, and they leave it when there is.
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-W", "5", "10.0.0.20")
	w.reaches(a, "bob", weft.RelayUDP)
	w.reaches(b, "ann", weft.RelayUDP)
	if err := gwA.Unblock(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	w.run(hostB, "ping", "-c", "1", "-W", "5", w.up(a).Self.Addrs[1].String()) // by IPv6, too
	if rate := w.iperf3(hostB, hostA, "10.0.0.10", 1); rate < 1e6 {
		t.Errorf("iperf3 to 10.0.0.10 had %.0f bit/s", rate)
	}

	// Its address taken, a third machine is told by whom.
	_, hostC := w.home("eve", netns.PortRestrictedCone)
	c := start(hostC, "eve", "10.0.0.10/16")
	select {
	case <-c.Process.Done():
	case <-w.ctx.Done():
		t.Fatal("it has not ended")
	}
	if said := c.Process.Log(); !c.Process.Failed() || !strings.Contains(said, "10.0.0.10 is taken by ann") {
		t.Errorf("it said %q", said)
	}

	// The rendezvous dies and comes back: nobody notices.
	call := w.call(hostA, hostB, addrB)
	call.goesOn(w, 300)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	away := func(n *Node, connected bool) {
		t.Helper()
		if err := netns.WaitFor(w.ctx, n.Name+" to notice", func() error {
			s, err := n.Status(w.ctx)
			if err == nil && s.Server.Connected != connected {
				err = errors.New("it has not")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	away(a, false)
	away(b, false)
	w.meeting(iex)
	away(a, true)
	away(b, true)
	call.goesOn(w, 300)
	if lost, sent := call.end(t); lost != 0 {
		t.Errorf("%d of %d packets were lost while the rendezvous was away", lost, sent)
	}

	// Who ends in order is gone at once.
	if err := b.Process.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := netns.WaitFor(w.ctx, "bob to be gone", func() error {
		if p, err := a.Peer(w.ctx, "bob"); err == nil {
			return fmt.Errorf("it is there by %v", p.Method)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
