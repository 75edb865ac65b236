package stun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sendTimes polls a transaction exactly when it asks to be, until it is over, and
// returns when it sent and when it gave up.
func sendTimes(t *testing.T, tx *Transaction) (sent []time.Duration, end time.Duration) {
	t.Helper()
	for now := epoch; ; {
		pkt, next, done := tx.Poll(now)
		if done {
			return sent, now.Sub(epoch)
		}
		if pkt != nil {
			sent = append(sent, now.Sub(epoch))
		}
		if !next.After(now) {
			t.Fatalf("at %v asked to be polled at %v", now.Sub(epoch), next.Sub(epoch))
		}
		now = next
	}
}

func TestARequestIsRepeatedAsRFC8489Says(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		cfg  TransactionConfig
		sent []time.Duration
		end  time.Duration
	}{
		// The example of section 6.2.1.
		"default": {TransactionConfig{}, []time.Duration{0, 500 * ms, 1500 * ms, 3500 * ms, 7500 * ms, 15500 * ms, 31500 * ms}, 39500 * ms},
		"faster":  {TransactionConfig{RTO: 100 * ms, Rc: 4, Rm: 2}, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms}, 900 * ms},
		"once":    {TransactionConfig{RTO: 100 * ms, Rc: 1, Rm: 3}, []time.Duration{0}, 300 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			tx := NewTransaction(epoch, server4, tc.cfg)
			sent, end := sendTimes(t, tx)
			if diff := cmp.Diff(tc.sent, sent); diff != "" || end != tc.end {
				t.Errorf("gave up after %v, want %v; sent (-want +got):\n%s", end, tc.end, diff)
			}
			if !errors.Is(tx.Err(), ErrTimeout) {
				t.Errorf("Err() = %v", tx.Err())
			}
		})
	}
}

func TestALateCallerDoesNotSendABurst(t *testing.T) {
	tx := NewTransaction(epoch, server4, TransactionConfig{})
	tx.Poll(epoch)
	late := epoch.Add(time.Minute)
	if pkt, next, _ := tx.Poll(late); pkt == nil || next.Sub(late) != time.Second {
		t.Errorf("after a minute: packet %v, next in %v; want one packet and a second of waiting", pkt != nil, next.Sub(late))
	}
	if pkt, _, _ := tx.Poll(late); pkt != nil {
		t.Error("a second copy at the same instant")
	}
}

func TestEveryCopyIsTheSameRequest(t *testing.T) {
	tx := NewTransaction(epoch, server4, TransactionConfig{Request: Request{Software: "weft", Fingerprint: true}})
	a, next, _ := tx.Poll(epoch)
	first := bytes.Clone(a)
	b, _, _ := tx.Poll(next)
	if !bytes.Equal(first, b) {
		t.Error("the copies differ")
	}
	m := mustParse(t, b)
	if m.ID != tx.ID() || m.Software() != "weft" || !m.hasFingerprint {
		t.Errorf("not what was asked for: %+v", m)
	}
}

// ask starts a transaction and returns it with its first packet.
func ask(t testing.TB, server netip.AddrPort, cfg TransactionConfig) (*Transaction, []byte) {
	t.Helper()
	tx := NewTransaction(epoch, server, cfg)
	pkt, _, _ := tx.Poll(epoch)
	if pkt == nil {
		t.Fatal("no packet at once")
	}
	return tx, pkt
}

func TestAnAnswerTellsWhatTheServerSaw(t *testing.T) {
	tx, req := ask(t, server4, TransactionConfig{})
	reply, _ := twoAddresses.Respond(nil, req, client4, server4)
	got, ok := tx.Handle(epoch.Add(30*time.Millisecond), reply.Packet, server4)
	want := Result{Mapped: client4, RTT: 30 * time.Millisecond, From: server4, Origin: server4, Other: ap("192.0.2.2:3479")}
	if !ok || got != want {
		t.Errorf("%v, got %+v, want %+v", ok, got, want)
	}
	if _, _, done := tx.Poll(epoch.Add(time.Hour)); !done || tx.Err() != nil || got.Err() != nil {
		t.Errorf("done %v, errors %v, %v", done, tx.Err(), got.Err())
	}
	if _, ok := tx.Handle(epoch.Add(time.Second), reply.Packet, server4); ok {
		t.Error("answered twice")
	}
}

func TestARoundTripIsNotClaimedAfterARetransmission(t *testing.T) {
	tx, req := ask(t, server4, TransactionConfig{})
	if again, _, _ := tx.Poll(epoch.Add(DefaultRTO)); again == nil {
		t.Fatal("no retransmission")
	}
	reply, _ := twoAddresses.Respond(nil, req, client4, server4)
	r, ok := tx.Handle(epoch.Add(DefaultRTO+time.Millisecond), reply.Packet, server4)
	if !ok || r.RTT != 0 {
		t.Errorf("answered %v, RTT %v; which copy was answered can't be known", ok, r.RTT)
	}
}

func TestWhatIsNotTheAnswerIsLeftToOthers(t *testing.T) {
	tx, req := ask(t, server4, TransactionConfig{})
	good, _ := twoAddresses.Respond(nil, req, client4, server4)
	other, _ := twoAddresses.Respond(nil, AppendBindingRequest(nil, testID, Request{}), client4, server4)
	withType := func(typ uint16) []byte {
		b := bytes.Clone(good.Packet)
		binary.BigEndian.PutUint16(b, typ)
		return b
	}
	for name, tc := range map[string]struct {
		pkt  []byte
		from netip.AddrPort
	}{
		"another transaction":  {other.Packet, server4},
		"another address":      {good.Packet, ap("192.0.2.9:3478")},
		"another port":         {good.Packet, ap("192.0.2.1:3479")},
		"nowhere":              {good.Packet, netip.AddrPort{}},
		"our own request":      {req, server4},
		"an indication":        {withType(0x0011), server4},
		"another method":       {withType(0x0103), server4},
		"cut":                  {good.Packet[:len(good.Packet)-1], server4},
		"nothing":              {nil, server4},
		"a wrong fingerprint":  {append(withLength(good.Packet, 8), 0x80, 0x28, 0, 4, 0, 0, 0, 0), server4},
		"a malformed response": {append(withLength(good.Packet, 4), 0x00, 0x01, 0, 0), server4},
	} {
		t.Run(name, func(t *testing.T) {
			if r, ok := tx.Handle(epoch, tc.pkt, tc.from); ok {
				t.Errorf("taken for the answer: %+v", r)
			}
		})
	}
	if _, ok := tx.Handle(epoch, good.Packet, ap("[::ffff:192.0.2.1]:3478")); !ok {
		t.Error("the answer itself, through a dual-stack socket, was not taken")
	}
	unasked := NewTransaction(epoch, server4, TransactionConfig{})
	copy(good.Packet[8:], unasked.id[:])
	if _, ok := unasked.Handle(epoch, good.Packet, server4); ok {
		t.Error("an answer before the question")
	}
}

func withLength(b []byte, extra int) []byte {
	b = bytes.Clone(b)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+extra-headerLen))
	return b
}

func TestAChangedAnswerComesFromJustWhatWasToChange(t *testing.T) {
	froms := []netip.AddrPort{server4, ap("192.0.2.1:3479"), ap("192.0.2.2:3478"), ap("192.0.2.2:3479")}
	for change, want := range map[Change][]bool{
		0:                     {true, false, false, false},
		ChangePort:            {true, true, false, false},
		ChangeIP:              {true, false, true, false},
		ChangeIP | ChangePort: {true, false, false, true},
	} {
		for i, from := range froms {
			tx, req := ask(t, server4, TransactionConfig{Request: Request{Change: change}})
			reply, _ := twoAddresses.Respond(nil, req, client4, server4)
			r, ok := tx.Handle(epoch, reply.Packet, from)
			if ok != want[i] || ok && r.From != from {
				t.Errorf("change %d, from %v: %v, %+v", change, from, ok, r)
			}
		}
	}
}

func TestARefusalEndsTheTransactionWithItsReason(t *testing.T) {
	tx, req := ask(t, server4, TransactionConfig{Request: Request{Change: ChangeIP}})
	reply, _ := (&Responder{}).Respond(nil, req, client4, server4)
	if _, ok := tx.Handle(epoch, reply.Packet, ap("192.0.2.2:3478")); ok {
		t.Error("a refusal from elsewhere was believed")
	}
	r, ok := tx.Handle(epoch, reply.Packet, server4)
	if !ok || r.Code != 420 || r.Mapped.IsValid() || r.Err() == nil {
		t.Fatalf("%v, %+v", ok, r)
	}
	if msg := r.Err().Error(); !strings.Contains(msg, "192.0.2.1:3478") || !strings.Contains(msg, `420 "Unknown Attribute"`) {
		t.Errorf("Err() = %q", msg)
	}
}

func TestAnAnswerThatCannotBeUnderstoodEndsTheTransaction(t *testing.T) {
	const mapped = "0020 0008 0001 bd52 e721c045"
	for name, tc := range map[string]struct {
		typ        uint16
		attributes string
	}{
		"an unknown attribute":        {0x0101, mapped + "7f01 0000"},
		"no mapped address":           {0x0101, "8022 0000"},
		"mapped to nowhere":           {0x0101, "0001 0008 0001 1000 00000000"},
		"mapped to port 0":            {0x0101, "0001 0008 0001 0000 01020304"},
		"a success with an error":     {0x0101, mapped + "0009 0004 00000414"},
		"an error without a code":     {0x0111, mapped},
		"an error not all understood": {0x0111, "0009 0004 00000414 7f01 0000"},
	} {
		t.Run(name, func(t *testing.T) {
			tx, _ := ask(t, server4, TransactionConfig{})
			b := message(t, tc.typ, tc.attributes)
			copy(b[8:], tx.id[:])
			if r, ok := tx.Handle(epoch, b, server4); ok {
				t.Errorf("taken: %+v", r)
			}
			if _, _, done := tx.Poll(epoch); !done || !errors.Is(tx.Err(), ErrNotUnderstood) {
				t.Errorf("done %v, Err() = %v", done, tx.Err())
			}
		})
	}
}

func BenchmarkHandle(b *testing.B) {
	tx, req := ask(b, server4, TransactionConfig{})
	reply, _ := twoAddresses.Respond(nil, req, client4, server4)
	b.ReportAllocs()
	for b.Loop() {
		tx.over = false
		if _, ok := tx.Handle(epoch, reply.Packet, server4); !ok {
			b.Fatal("not taken")
		}
	}
}
