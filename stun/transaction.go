package stun

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// RFC 8489, section 6.2.1, for UDP.
const (
	DefaultRTO = 500 * time.Millisecond // first retransmission interval; doubled each time
	DefaultRc  = 7                      // requests sent in all
	DefaultRm  = 16                     // RTOs to wait after the last of them
)

var (
	// ErrTimeout is how a transaction ends that nobody answered.
	ErrTimeout = errors.New("stun: the server did not answer: UDP to it is blocked, or it is not there")
	// ErrNotUnderstood is how a transaction ends whose answer holds attributes
	// that must be understood and are not, or not those that it must have.
	ErrNotUnderstood = errors.New("stun: the server answered in a way that can't be understood")
)

// TransactionConfig says how to ask. Each zero field takes its default.
type TransactionConfig struct {
	RTO     time.Duration // DefaultRTO; less where the network is known to be near
	Rc      int           // DefaultRc
	Rm      int           // DefaultRm
	Request Request       // what to ask; the bare header by default
}

func (c TransactionConfig) withDefaults() TransactionConfig {
	if c.RTO <= 0 {
		c.RTO = DefaultRTO
	}
	if c.Rc <= 0 {
		c.Rc = DefaultRc
	}
	if c.Rm <= 0 {
		c.Rm = DefaultRm
	}
	return c
}

// Result is what a server answered.
type Result struct {
	Mapped netip.AddrPort // our address as the server sees it; invalid if Code is not 0
	RTT    time.Duration  // round trip; 0 where a retransmission makes it ambiguous (Karn)
	From   netip.AddrPort // who answered: the server, unless a change was asked for
	Origin netip.AddrPort // what the server says it answered from; invalid if it does not
	Other  netip.AddrPort // its alternate address and port; invalid if it has none
	Port   uint16         // its alternate port at the same address; 0 if it has none
	Code   int            // 0, or the error code of a refusal
	Reason string         // the server's words for that
}

// Err is nil for a success, and a sentence for a refusal.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return fmt.Errorf("stun: %v refused the request: error %d %q", r.From, r.Code, r.Reason)
}

// Transaction is one binding request, repeated until it is answered or given up.
// One goroutine at a time may use it. The zero value is not usable.
type Transaction struct {
	id     TransactionID
	server netip.AddrPort
	change Change
	packet []byte

	interval time.Duration // until the next retransmission
	patience time.Duration // after the last one
	left     int           // requests still to send
	sent     int
	sentAt   time.Time // when the first one left
	due      time.Time // when Poll has something to do
	over     bool
	err      error
}

// NewTransaction prepares a request to server, the first copy of which is due now.
func NewTransaction(now time.Time, server netip.AddrPort, cfg TransactionConfig) *Transaction {
	cfg = cfg.withDefaults()
	t := &Transaction{
		id:       NewTransactionID(),
		server:   server,
		change:   cfg.Request.Change & (ChangeIP | ChangePort),
		interval: cfg.RTO,
		patience: time.Duration(cfg.Rm) * cfg.RTO,
		left:     cfg.Rc,
		due:      now,
	}
	t.packet = AppendBindingRequest(nil, t.id, cfg.Request)
	return t
}

// ID is the transaction's own, for callers with many under way.
func (t *Transaction) ID() TransactionID { return t.id }

// Server is who was asked.
func (t *Transaction) Server() netip.AddrPort { return t.server }

// Err is nil while the transaction runs and after an answer, and says why it
// ended without one.
func (t *Transaction) Err() error { return t.err }

// Poll returns the packet to send to the server now, nil if there is none; when
// to poll again; and whether the transaction is over, answered or not. The packet
// is the same each time and must not be changed.
func (t *Transaction) Poll(now time.Time) (packet []byte, next time.Time, done bool) {
	if t.over {
		return nil, time.Time{}, true
	}
	if now.Before(t.due) {
		return nil, t.due, false
	}
	if t.left == 0 {
		t.end(ErrTimeout)
		return nil, time.Time{}, true
	}
	if t.sent == 0 {
		t.sentAt = now
	}
	t.sent++
	t.left--
	// Counted from now and not from when it was due: a caller that was late must
	// not send its copies in a burst.
	if t.left > 0 {
		t.due = now.Add(t.interval)
		t.interval *= 2
	} else {
		t.due = now.Add(t.patience)
	}
	return t.packet, t.due, false
}

// Handle takes a datagram that came from `from`. It is true if that was the
// answer, which ends the transaction; anything else is left to others.
func (t *Transaction) Handle(now time.Time, pkt []byte, from netip.AddrPort) (Result, bool) {
	if t.over || t.sent == 0 || !Is(pkt) || TransactionID(pkt[8:headerLen]) != t.id {
		return Result{}, false
	}
	m, err := Parse(pkt)
	if err != nil || m.Method != MethodBinding || !t.mayAnswer(m.Class, from) {
		return Result{}, false
	}
	if m.unknowns > 0 || (m.Class == ClassError) != (m.Code != 0) ||
		m.Class == ClassSuccess && !usable(m.Mapped) {
		t.end(ErrNotUnderstood) // RFC 8489, 6.3.3 and 6.3.4
		return Result{}, false
	}
	r := Result{From: netip.AddrPortFrom(plainAddr(from), from.Port()), Origin: m.Origin, Other: m.Other, Port: m.OtherPort}
	if m.Class == ClassError {
		r.Code, r.Reason = m.Code, m.Reason()
	} else {
		r.Mapped = m.Mapped
	}
	if t.sent == 1 {
		r.RTT = now.Sub(t.sentAt)
	}
	t.end(nil)
	return r, true
}

func (t *Transaction) end(err error) {
	t.over, t.err = true, err
}

// mayAnswer reports whether an answer of that class can come from there. A
// refusal comes from the server that was asked, and so does the answer of a
// server that knows no changes; an answer with a change comes from just the
// address and port that were to change.
func (t *Transaction) mayAnswer(c Class, from netip.AddrPort) bool {
	if c != ClassSuccess && c != ClassError {
		return false
	}
	sameIP := plainAddr(from) == plainAddr(t.server)
	samePort := from.Port() == t.server.Port()
	if sameIP && samePort {
		return true
	}
	return c == ClassSuccess &&
		sameIP == (t.change&ChangeIP == 0) && samePort == (t.change&ChangePort == 0)
}

// plainAddr is the address in the form that two spellings of it share.
func plainAddr(a netip.AddrPort) netip.Addr { return a.Addr().Unmap().WithZone("") }

func same(a, b netip.AddrPort) bool {
	return plainAddr(a) == plainAddr(b) && a.Port() == b.Port()
}

// usable reports whether a is somewhere that a datagram could be sent.
func usable(a netip.AddrPort) bool {
	return a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() && !a.Addr().IsMulticast()
}
