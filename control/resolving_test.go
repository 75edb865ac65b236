package control

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"weft"
)

// someNames are names to set, some of them those of nodes, some refused.
func someNames(n int) DNSRequest {
	var q DNSRequest
	if n%3 == 1 {
		q.Domain = "home.internal"
	}
	for i := range n % 4 {
		q.Records = append(q.Records, weft.DNSRecord{Name: fmt.Sprint("m", n+i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}})
	}
	if n%2 == 0 {
		q.Search = []string{"corp.example"}
	}
	return q
}

func TestNamesAreToldToEverybodyAndKept(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		b.hangUp()
		settle()
		q := DNSRequest{DNSDocument: DNSDocument{Domain: "home.internal", DNS: weft.DNS{
			Upstreams: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
			Split:     map[string][]netip.AddrPort{"Corp.Example": nil},
			Records:   []weft.DNSRecord{{Name: "printer", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}},
		}}}
		got, err := w.SetDNS(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		settle()
		if m := a.current(); m.Domain != "home.internal" || !m.DNS.Equal(got.DNS) || len(m.DNS.Split["corp.example"]) != 0 || a.maps != 1 {
			t.Errorf("a has %s, %+v after %d whole maps", m.Domain, m.DNS, a.maps)
		}
		b.connect() // missed it
		settle()
		if m := b.current(); m.Domain != "home.internal" || !m.DNS.Equal(got.DNS) || b.maps != 1 {
			t.Errorf("b has %s, %+v after %d whole maps", m.Domain, m.DNS, b.maps)
		}
		plain, err := w.CreatePlain(context.Background(), PlainRequest{Key: w.machine(nil, "").hello.NodeKey, Via: "a", Endpoint: "gw.example:1"})
		if err != nil || plain.Domain != "home.internal" {
			t.Errorf("a plain member is told of the domain %q, %v", plain.Domain, err)
		}

		// Whoever wishes for a name that is written down gets another one.
		if c := w.join(KeyRequest{}, "printer"); c.current().Self.Name != "printer-2" {
			t.Errorf("a node is called %s", c.current().Self.Name)
		}
		w.restart()
		a.connect()
		settle()
		if m := a.current(); m.Domain != "home.internal" || !m.DNS.Equal(got.DNS) {
			t.Errorf("after a restart a has %s, %+v", m.Domain, m.DNS)
		}
		if c := w.join(KeyRequest{}, "printer"); c.current().Self.Name != "printer-3" {
			t.Errorf("after a restart a node is called %s", c.current().Self.Name)
		}
		if now := w.DNS(); now.Revision != got.Revision || !now.Changed.Equal(got.Changed) {
			t.Errorf("after a restart the document is %+v, and was %+v", now, got)
		}

		// What is taken away is free again, and the domain is what it was at first.
		if _, err := w.SetDNS(context.Background(), DNSRequest{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if m := a.current(); m.Domain != weft.Domain || !m.DNS.Equal(weft.DNS{}) {
			t.Errorf("with nothing written a has %s, %+v", m.Domain, m.DNS)
		}
		if c := w.join(KeyRequest{}, "printer"); c.current().Self.Name != "printer" {
			t.Errorf("a node is called %s", c.current().Self.Name)
		}
	})
}

func TestNamesThatMakeNoSenseAreRefusedAndNothingChanges(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "desk")
		before := w.DNS()
		heard := a.changes + a.maps
		addr := []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		for _, c := range []struct {
			doc   DNSDocument
			code  weft.Code
			words string
		}{
			{DNSDocument{Domain: "local"}, weft.CodeBadRequest, "domain:"},
			{DNSDocument{Domain: "home.internal", DNS: weft.DNS{Split: map[string][]netip.AddrPort{"x.home.internal": nil}}}, weft.CodeBadRequest, "below home.internal"},
			{DNSDocument{DNS: weft.DNS{Records: []weft.DNSRecord{{Name: "desk", Addrs: addr}}}}, weft.CodeNameTaken, "weft admin node rename desk"},
			{DNSDocument{DNS: weft.DNS{Upstreams: []netip.AddrPort{netip.AddrPortFrom(w.Status().Service, 53)}}}, weft.CodeBadRequest, "ask itself"},
			{DNSDocument{DNS: weft.DNS{Split: map[string][]netip.AddrPort{"a.b": {netip.AddrPortFrom(w.Status().Service, 5353)}}}}, weft.CodeBadRequest, "ask itself"},
		} {
			_, err := w.SetDNS(context.Background(), DNSRequest{DNSDocument: c.doc})
			if weft.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%+v: %v", c.doc, err)
			}
		}
		if _, err := w.SetDNS(context.Background(), DNSRequest{Revision: "another"}); weft.CodeOf(err) != weft.CodeConflict {
			t.Errorf("of another revision: %v", err)
		}
		settle()
		if w.DNS().Revision != before.Revision || a.changes+a.maps != heard {
			t.Error("what was refused has changed something")
		}
		if _, err := w.RenameNode(context.Background(), "desk", "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.SetDNS(context.Background(), DNSRequest{DNSDocument: DNSDocument{DNS: weft.DNS{Records: []weft.DNSRecord{{Name: "desk", Addrs: addr}}}}}); err != nil {
			t.Error(err)
		}
		if _, err := w.RenameNode(context.Background(), "x", "desk"); weft.CodeOf(err) != weft.CodeNameTaken {
			t.Errorf("a node was given a name that is written down: %v", err)
		}
	})
}

// Of many who change what they read, each by something of its own, nobody undoes another's.
func TestWhoChangesNamesAtOnceUndoesNobodys(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const people = 20
		var all sync.WaitGroup
		for i := range people {
			all.Go(func() {
				for {
					now := w.DNS()
					q := DNSRequest{DNSDocument: now.DNSDocument, Revision: now.Revision}
					q.Records = append(slices.Clone(q.Records), weft.DNSRecord{Name: fmt.Sprint("r", i), Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
					_, err := w.SetDNS(context.Background(), q)
					if weft.CodeOf(err) == weft.CodeConflict {
						continue
					}
					if err != nil {
						t.Error(err)
					}
					return
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := len(w.DNS().Records); n != people {
			t.Errorf("%d of %d records are there", n, people)
		}
	})
}
