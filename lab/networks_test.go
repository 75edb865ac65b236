package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// serveAnother starts a second server, of another network, and returns it with a token.
func (w *world) serveAnother(name string, flags ...string) (*Server, string) {
	w.t.Helper()
	s, err := w.fleet.StartServer(w.ctx, w.must(w.net.AddHost(name)), flags...)
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := s.Token(w.ctx, "--reusable")
	if err != nil {
		w.t.Fatal(err)
	}
	return s, token
}

func (w *world) nodeOf(token string, h *netns.Host, name string, flags ...string) *Node {
	w.t.Helper()
	n, err := w.fleet.StartNode(w.ctx, h, name, token, flags...)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// fetches waits until a host gets a page by name, and tells how long it took when it did.
func (w *world) fetches(h *netns.Host, name, want string) time.Duration {
	w.t.Helper()
	var took time.Duration
	var got string
	err := netns.WaitFor(w.ctx, name+" to be fetched", func() (err error) {
		began := time.Now()
		got, err = h.Run(w.ctx, "curl", "-4", "-sS", "--max-time", "20", "http://"+name+"/")
		took = time.Since(began)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if got != want {
		w.t.Errorf("http://%s/ reads %q, want %q", name, got, want)
	}
	return took
}

func (w *world) resolvConf(h *netns.Host) string {
	w.t.Helper()
	text, err := h.ResolvConf()
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

func TestAMachineIsInTwoNetworksAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second, token := w.serveAnother("srv2", "--range", "10.99.0.0/16")
	if _, err := second.Admin(w.ctx, "dns", "set", "domain=lab.internal", "record.alias=192.0.2.81"); err != nil {
		t.Fatal(err)
	}
	both, hostA, hostB := w.resolves(w.must(w.net.AddHost("both"))), w.must(w.net.AddHost("ann")), w.must(w.net.AddHost("bob"))
	asFound := w.resolvConf(both)
	tun1, tun2 := w.nic("wa"), w.nic("wb")
	first := w.node(both, "--tun", tun1)
	ann := w.node(hostA)
	other := w.nodeOf(token, both, "both2", "--tun", tun2)
	bob := w.nodeOf(token, hostB, "bob")
	addrA, addrB := w.up(ann).Self.Addrs[0], w.up(bob).Self.Addrs[0]
	w.up(first)
	w.up(other)
	w.serves(hostA, addrA)
	w.serves(hostB, addrB)
	settled := func(what string) {
		t.Helper()
		w.fetches(both, "ann.weft.internal", "this is ann")
		w.fetches(both, "bob.lab.internal", "this is bob")
		for name, want := range map[string]string{"www.example.org": "192.0.2.80", "alias.lab.internal": "192.0.2.81", addrA.String(): "ann.weft.internal", addrB.String(): "bob.lab.internal"} {
			began := time.Now()
			if got := w.eventually(name, both, "getent", "hosts", name); !strings.Contains(got, want) {
				t.Errorf("%s: %s resolves to %q", what, name, got)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("%s: it took %v to resolve %s", what, took, name)
			}
		}
	}
	settled("with both")

	// A third one that has the addresses of the first is told so, and disturbs nobody.
	third := w.nodeOf(w.token, both, "both3", "--tun", w.nic("wc"))
	err := netns.WaitFor(w.ctx, "the third network to be refused", func() error {
		s, err := third.Status(w.ctx)
		if err != nil {
			return err
		}
		if said := strings.Join(s.Problems, " "); s.State == weft.Running || !strings.Contains(said, tun1) || !strings.Contains(said, "--range") {
			return fmt.Errorf("it is %s: %s", s.State, said)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	settled("with a third")
	third.Process.Stop()

	// Names that two networks share are told, too; when they are no longer shared, both resolve.
	if _, err := second.Admin(w.ctx, "dns", "set", "domain=weft.internal"); err != nil {
		t.Fatal(err)
	}
	err = netns.WaitFor(w.ctx, "the shared domain to be told", func() error {
		s, err := other.Status(w.ctx)
		if said := strings.Join(s.Problems, " "); err == nil && !strings.Contains(said, "weft admin dns set domain=") {
			return fmt.Errorf("it says: %s", said)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	w.fetches(both, "ann.weft.internal", "this is ann")
	if _, err := second.Admin(w.ctx, "dns", "set", "domain=lab.internal"); err != nil {
		t.Fatal(err)
	}
	settled("with domains of their own again")

	err = netns.WaitFor(w.ctx, "the one whose domain came back to be asked", func() error {
		if got := w.resolvConf(both); !strings.Contains(got, "10.99.") {
			return fmt.Errorf("resolv.conf is\n%s", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	// One is killed: the other's names go on. `weft down` puts back what it left.
	if err := other.Process.Kill(); err != nil {
		t.Log(err)
	}
	w.fetches(both, "ann.weft.internal", "this is ann")
	out, err := both.Run(w.ctx, w.fleet.Binary, "down", "--socket", other.Socket, "--state", other.State, "--tun", tun2)
	if err != nil || !strings.Contains(out, "put back") {
		t.Errorf("weft down after a kill: %q, %v", out, err)
	}
	if took := w.fetches(both, "ann.weft.internal", "this is ann"); took > 3*time.Second {
		t.Errorf("after that it took %v to fetch a page by name", took)
	}
	if got := w.resolvConf(both); strings.Contains(got, "10.99.") || !strings.Contains(got, "100.64.") {
		t.Errorf("resolv.conf is\n%s", got)
	}
	if out, err := both.Run(w.ctx, w.fleet.Binary, "down", "--socket", other.Socket, "--state", other.State, "--tun", tun2); err == nil {
		t.Errorf("a second weft down found something to put back: %q", out)
	}
	// Killed as well, the first one's next start puts back what was there at first, at its end.
	if err := first.Process.Kill(); err != nil {
		t.Log(err)
	}
	if err := first.Start(w.ctx, "", "--tun", tun1); err != nil {
		t.Fatal(err)
	}
	w.up(first)
	w.fetches(both, "ann.weft.internal", "this is ann")
	if err := first.Process.Stop(); err != nil {
		t.Error(err)
	}
	if got := w.resolvConf(both); got != asFound {
		t.Errorf("after all resolv.conf is %q, and was %q", got, asFound)
	}
}
