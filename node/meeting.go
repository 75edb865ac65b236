package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"weft"
	"weft/rendezvous"
	"weft/wire"
)

const (
	// meetRetry bounds the wait between tries, well below rendezvous.Forget: after a restart of the rendezvous all are back
	// before anybody is missed.
	meetRetry = 8 * time.Second
	// meetPatience bounds the beginning of a stream, up to the first word for members.
	meetPatience = 20 * time.Second
	// meetCheck is how long a beat may take to be answered after this machine's network changed.
	meetCheck = 4 * time.Second
)

// Words are a network of two words, as a daemon is started with it.
type Words struct {
	Network rendezvous.Network
	URL     string       // of the rendezvous
	Address netip.Prefix // asked for, with the length of the network's range; invalid: any will do
}

// A meeting is the coordinator of a network of two words: it keeps this node's record at the rendezvous, and makes the map
// of the others'.
type meeting struct {
	state  *State
	sink   sessionSink
	outbox *outbox
	log    *slog.Logger
	view   *rendezvous.View // run's goroutine's

	mu      sync.Mutex
	status  weft.ServerStatus
	heard   time.Time
	conn    *rendezvous.Conn // nil: not entered
	leaving bool
}

func newMeeting(state *State, sink sessionSink, out *outbox, log *slog.Logger) *meeting {
	id := state.Identity()
	return &meeting{
		state: state, sink: sink, outbox: out, log: log,
		view: rendezvous.NewView(id.Network, id.Node.Public(), state.Map()),
	}
}

// run connects, and connects again, until ctx ends, the node leaves, or it cannot be a member.
func (m *meeting) run(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := m.once(ctx)
		if ctx.Err() != nil || m.left() {
			return
		}
		var refusal *weft.Error
		refused := errors.As(err, &refusal) && refusal.Code.Permanent()
		m.lost(err, refused)
		if refused {
			m.sink.refused(refusal)
			return
		}
		if time.Since(began) > meetRetry {
			wait = retryFirst
		}
		pause := wait/2 + rand.N(wait)
		m.log.Debug("no connection to the rendezvous", "error", err, "retry", pause)
		select {
		case <-ctx.Done():
			return
		case <-m.outbox.kicks:
			wait = retryFirst
		case <-time.After(pause):
			wait = min(2*wait, meetRetry)
		}
	}
}

// once is one connection, from dialling to its end.
func (m *meeting) once(ctx context.Context) error {
	id := m.state.Identity()
	conn, err := rendezvous.Dial(ctx, id.URL)
	if err != nil {
		return err
	}
	left := make(chan struct{})
	stay := context.AfterFunc(ctx, func() {
		defer close(left)
		conn.Leave()
		conn.Close()
	})
	defer func() {
		if !stay() {
			<-left
		}
		conn.Close()
	}()
	known := m.state.Map() != nil
	if err := m.enter(conn, id, known); err != nil {
		return unlessKnown(err, known)
	}
	words, ended := make(chan wire.Members), make(chan struct{})
	defer close(ended)
	broken := make(chan error, 1)
	go func() { broken <- m.hear(conn, words, ended) }()
	return m.attend(ctx, conn, id, words, broken, known)
}

// enter proves that this node is a member.
func (m *meeting) enter(conn *rendezvous.Conn, id Identity, known bool) error {
	patience := time.AfterFunc(meetPatience, func() { conn.Close() })
	defer patience.Stop()
	for {
		said, err := conn.Hear()
		switch {
		case err != nil:
			return err
		case said.Refusal != nil:
			return said.Refusal
		case said.Challenge != nil:
			if err := conn.Say(wire.MemberMessage{Enter: id.Network.Enter(said.Challenge.Nonce, id.Node.Public(), known)}); err != nil {
				return err
			}
		case said.Entered != nil:
			m.view.Enter(*said.Entered, id.URL)
			m.entered(conn)
			return nil
		}
	}
}

// hear hands over what is said of members, until the stream ends.
func (m *meeting) hear(conn *rendezvous.Conn, words chan<- wire.Members, ended <-chan struct{}) error {
	for {
		said, err := conn.Hear()
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.heard = time.Now()
		m.mu.Unlock()
		switch {
		case said.Refusal != nil:
			return said.Refusal
		case said.Members != nil:
			select {
			case words <- *said.Members:
			case <-ended:
				return nil
			}
		}
	}
}

// attend is a connection once this node has entered.
func (m *meeting) attend(ctx context.Context, conn *rendezvous.Conn, id Identity, words <-chan wire.Members, broken <-chan error, known bool) error {
	beat := time.NewTicker(rendezvous.BeatEvery)
	defer beat.Stop()
	forget := time.NewTimer(0)
	defer forget.Stop()
	confirmed := false // this node's claim is stored, and nobody had it first
	var asked time.Time
	var due <-chan time.Time
	for n := uint64(1); ; {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return unlessKnown(err, known || confirmed)
		case said := <-words:
			confirmed, err = m.take(conn, id, said, confirmed)
		case <-m.outbox.changed:
			if confirmed {
				err = m.claim(conn, id, m.view.Address())
			}
		case <-beat.C:
			if time.Since(m.lastHeard()) > rendezvous.Silence {
				return errors.New("the rendezvous is silent")
			}
			err = conn.Say(wire.MemberMessage{Beat: &wire.Beat{N: n}})
			n++
		case <-m.outbox.kicks:
			asked, due = time.Now(), time.After(meetCheck)
			err = conn.Say(wire.MemberMessage{Beat: &wire.Beat{N: n}})
			n++
		case <-due:
			if due = nil; m.lastHeard().Before(asked) {
				return errors.New("the rendezvous is silent")
			}
		case <-forget.C:
			forgot, next := m.view.Forget(time.Now())
			if forgot && confirmed {
				m.sink.gotMap(m.view.Map())
			}
			if !next.IsZero() {
				forget.Reset(time.Until(next))
			}
			continue
		}
		if err != nil {
			return err
		}
		forget.Reset(0)
	}
}

// take takes in what was said of members, claims an address when it is known who has which, and hands the map over when
// this node has its own.
func (m *meeting) take(conn *rendezvous.Conn, id Identity, said wire.Members, confirmed bool) (bool, error) {
	if bad := m.view.Take(time.Now(), said); bad > 0 {
		m.log.Warn("the rendezvous showed records that no member made; they are left out", "records", bad)
	}
	confirmed = confirmed || said.Claimed
	holder, lost := m.view.Lose()
	switch {
	case lost && id.Address.IsValid():
		return false, &weft.Error{Code: weft.CodeAddressTaken, Message: fmt.Sprintf(
			"%v was taken by %s (%v) first: choose another with --address, or leave it out to have one picked", id.Address.Addr(), holder.Name, holder.Address)}
	case lost:
		m.log.Info("another machine has this address; taking another", "address", m.view.Address(), "holder", holder.Name)
		m.view.Abandon()
		confirmed = false
		fallthrough
	case said.Whole:
		address, err := m.choose(id)
		if err != nil {
			return false, err
		}
		return confirmed, m.claim(conn, id, address)
	case confirmed:
		if said.Claimed {
			m.sink.welcomed(wire.Welcome{})
		}
		m.sink.gotMap(m.view.Map())
	}
	return confirmed, nil
}

// choose is the address to claim: the one that this node has, else the one that was asked for, else the one that it had.
func (m *meeting) choose(id Identity) (netip.Prefix, error) {
	if a := m.view.Address(); a.IsValid() {
		return a, nil
	}
	if id.Address.IsValid() {
		return m.view.Choose(id.Address, false)
	}
	var wish netip.Prefix
	if last := m.state.Map(); last != nil && len(last.Self.Addrs) > 0 && len(last.Ranges) > 0 {
		wish = netip.PrefixFrom(last.Self.Addrs[0], last.Ranges[0].Bits())
	}
	return m.view.Choose(wish, true)
}

func (m *meeting) claim(conn *rendezvous.Conn, id Identity, address netip.Prefix) error {
	var u wire.Update
	if latest := m.outbox.latest(); latest != nil {
		u = *latest
	}
	name := id.Name
	if name == "" {
		name = "node"
	}
	sealed, err := id.Network.Seal(m.view.Claim(time.Now(), name, address, u))
	if err != nil {
		return err
	}
	return conn.Say(wire.MemberMessage{Claim: &wire.Claim{Number: rendezvous.Number(address.Addr()), Sealed: sealed}})
}

// unlessKnown makes of a refusal by a rendezvous, which proves nothing of itself, one that is tried again, where this node
// has been in the network: its word is not worth a network that works.
func unlessKnown(err error, known bool) error {
	var refusal *weft.Error
	if known && errors.As(err, &refusal) && refusal.Code.Permanent() {
		return &weft.Error{Code: weft.CodeUnavailable, Message: "the rendezvous refuses: " + refusal.Message}
	}
	return err
}

func (m *meeting) entered(conn *rendezvous.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn, m.heard = conn, time.Now()
	m.status = weft.ServerStatus{Connected: true, Since: m.heard, Transport: string(conn.Info.Transport)}
	m.log.Info("connected to the rendezvous", "transport", conn.Info.Transport, "tls", conn.Info.TLS)
}

// lost notes that there is no connection, and says so once. A refusal is the sink's to tell.
func (m *meeting) lost(err error, refused bool) {
	m.view.Lost()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn = nil
	if m.status.Connected || m.status.Since.IsZero() {
		m.status = weft.ServerStatus{Since: time.Now()}
		switch {
		case refused:
		case m.state.Map() == nil:
			m.log.Warn("the rendezvous is not reached yet; trying again", "error", err)
		default:
			m.log.Warn("no connection to the rendezvous; tunnels go on with what is known", "error", err)
		}
	}
	if err != nil {
		m.status.Error = err.Error()
	}
}

func (m *meeting) lastHeard() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard
}

func (m *meeting) left() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving
}

// logout asks the rendezvous to forget the node.
func (m *meeting) logout() bool {
	m.mu.Lock()
	conn := m.conn
	m.leaving = conn != nil
	m.mu.Unlock()
	return conn != nil && conn.Leave() == nil
}

// serverStatus is what weft status shows of the connection.
func (m *meeting) serverStatus() weft.ServerStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.status
	st.URL = m.state.Identity().URL
	if !m.heard.IsZero() {
		st.MapAge = time.Since(m.heard).Seconds()
	}
	return st
}

// meet makes this machine a member of a network of two words, unless it is in another.
func (d *Daemon) meet(w Words) error {
	id := d.state.Identity()
	if id.Joined() && d.state.Map() != nil && id.Network.Public != w.Network.Public {
		which := "the network of " + id.URL
		if id.Network.Name != "" {
			which = fmt.Sprintf("the network %s, or %[1]s with another secret", id.Network.Name)
		}
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
			"this machine already belongs to %s: leave it first with `weft logout`, or run a second node with its own --state, --socket and --tun", which)}
	}
	return d.state.Meet(w, d.nameOf("", id))
}
