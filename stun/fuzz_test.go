package stun

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// seeds are datagrams of every kind, for all fuzzers.
func seeds(f *testing.F) {
	for _, v := range []string{vectorRequest, vectorIPv4, vectorIPv6, vectorLongTerm, vectorSHA256} {
		f.Add(unhex(f, v))
	}
	for _, b := range answerable(f) {
		if len(b) > 4096 {
			continue // long ones only slow the fuzzer down
		}
		f.Add(b)
		for _, c := range []netip.AddrPort{client4, client6} {
			if reply, ok := twoAddresses.Respond(nil, b, c, server6); ok {
				f.Add(reply.Packet)
			}
		}
	}
	for _, attributes := range []string{
		"0020 0000", "0001 0008 0001 1000 01020304", "8022 ffff 61626364", "0003 0004 00000006",
		"000a 0003 00010200", "0009 0004 00000414", "0026 0000 0027 0004 1388 0000", "8028 0004 00000000",
		"d757 0004 0d97 0000", "d757 0002 0d97 0000",
	} {
		f.Add(message(f, 0x0001, attributes))
		f.Add(message(f, 0x0101, attributes))
		f.Add(classic(message(f, 0x0001, attributes)))
	}
	f.Add(AppendBindingRequest(nil, testID, Request{Padding: 1600}))
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add(append([]byte{1}, make([]byte, 147)...))
}

func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		m, err := Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Parse changed its input")
		}
		if err == nil && !Is(b) {
			t.Fatal("parsed what Is does not know")
		}
		if Is(b) && IsClassic(b) {
			t.Fatal("both kinds at once")
		}
		useAll(&m)
		if err != nil {
			return
		}
		if len(m.Unknown()) > maxUnknown || m.Code != 0 && (m.Code < 300 || m.Code > 699) {
			t.Fatalf("out of range: %+v", m)
		}
		if m.Class != ClassRequest || m.Method != MethodBinding || len(m.Unknown()) > 0 {
			return
		}
		// What was understood of a request can be said again.
		want := Request{cut(m.Software(), maxSoftware), m.Change, (m.Padding + 3) &^ 3, m.ResponsePort, m.hasFingerprint}
		if want.Padding > MaxPadding {
			return
		}
		again, err := Parse(AppendBindingRequest(nil, m.ID, want))
		if err != nil {
			t.Fatalf("%+v: %v", want, err)
		}
		got := Request{again.Software(), again.Change, again.Padding, again.ResponsePort, again.hasFingerprint}
		if got != want || again.ID != m.ID {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func FuzzRespond(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, req []byte) {
		for _, r := range []*Responder{{}, {Software: "weft"}, &twoAddresses, &twoPorts} {
			for _, c := range []struct {
				from, local netip.AddrPort
				overhead    int
			}{{client4, server4, 28}, {client6, server6, 48}, {client4, netip.AddrPort{}, 28}} {
				dst := append(make([]byte, 0, 6+MaxReply), "before"...)
				reply, ok := r.Respond(dst, req, c.from, c.local)
				if !ok {
					continue
				}
				if &reply.Packet[0] != &dst[0] || string(reply.Packet[:6]) != "before" {
					t.Fatal("dst had room and was left, or overwritten")
				}
				answer := reply.Packet[6:]
				if r != &twoAddresses {
					if len(answer)+c.overhead > (len(req)+c.overhead)*3/2 {
						t.Fatalf("%d bytes answered with %d", len(req), len(answer))
					}
					if from := reply.From; r == &twoPorts && from.Addr() == c.local.Addr() && slices.Contains(r.Ports[:], from.Port()) {
					} else if from != c.local {
						t.Fatalf("a server with one address answers from %v", reply.From)
					}
				}
				if reply.To.Addr() != c.from.Addr() || reply.To.Port() == 0 {
					t.Fatalf("answers to %v", reply.To)
				}
				m, err := parse(answer, IsClassic(req))
				if err != nil || !lengthFits(answer) {
					t.Fatalf("the answer can't be read: %v", err)
				}
				if !bytes.Equal(answer[4:headerLen], req[4:headerLen]) {
					t.Fatal("the answer is to another transaction")
				}
				switch {
				case m.Class == ClassSuccess && m.Mapped == c.from:
				case m.Class == ClassError && m.Code == 420 && len(m.UnknownAttributes()) > 0:
				case m.Class == ClassError && m.Code == 400:
				default:
					t.Fatalf("neither success nor refusal: %+v", m)
				}
				if again, ok := r.Respond(nil, answer, c.from, c.local); ok {
					t.Fatalf("a response was answered: % x", again.Packet)
				}
			}
		}
	})
}

func FuzzHandle(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, change := range []Change{0, ChangeIP | ChangePort} {
			tx, _ := ask(t, server4, TransactionConfig{Request: Request{Change: change}})
			if _, ok := tx.Handle(epoch, b, server4); ok {
				t.Fatal("a stranger guessed the transaction ID")
			}
			if len(b) >= headerLen { // and now one who knows it
				b = bytes.Clone(b)
				copy(b[8:], tx.id[:])
			}
			r, ok := tx.Handle(epoch, b, server4)
			if ok && (r.Code == 0) != usable(r.Mapped) {
				t.Fatalf("neither an address nor a refusal: %+v", r)
			}
			if _, _, done := tx.Poll(epoch); ok && !done {
				t.Fatal("answered and not over")
			}
		}
	})
}

// Whoever answers, whatever he says: a discovery ends in time, and sends to nobody but the servers, their other ports
// and addresses, and where we are said to be.
func FuzzDiscovery(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		d := NewDiscovery(epoch, DiscoveryConfig{
			Servers: []netip.AddrPort{server4, ap("192.0.2.3:3478")}, Ports: []uint16{1, 2, 3, 4, 5, 6, 7},
			Probers: []Prober{{ap("192.0.2.3:3478"), client4.Addr()}}, Local: []netip.Addr{client4.Addr()},
		})
		now := epoch
		for range 2000 {
			a, next, done := d.Poll(now)
			switch {
			case done:
				d.Report()
				return
			case a.Probe.Port != 0:
				copy(b[8:], a.Probe.ID[:])
				d.Handle(now, a.Socket, b, a.To)
				d.Probed(now, a.Probe.ID, len(b)%2 == 0)
			case a.Packet != nil:
				if !a.To.IsValid() || a.To.Port() == 0 {
					t.Fatalf("sends to %v", a.To)
				}
				copy(b[8:], a.Packet[8:headerLen])
				d.Handle(now, a.Socket, b, a.To)
			case !next.After(now):
				t.Fatalf("at %v wants to be polled at %v", now, next)
			default:
				now = next
			}
		}
		t.Fatalf("no end after %v", now.Sub(epoch))
	})
}
