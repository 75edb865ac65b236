package control

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"weft"
	"weft/key"
	"weft/wire"
)

// How often a node is told of changes. The first one is told at once; those that follow it closely are told
// together, after a pause that grows with the network, so that the whole network in motion makes at most
// 20,000 messages a second (50 us a node), and everybody knows within a second all the same.
const (
	paceLeast = 100 * time.Millisecond
	paceMost  = 500 * time.Millisecond
	pacePer   = 50 * time.Microsecond
)

func pace(nodes int) time.Duration {
	return min(max(time.Duration(nodes)*pacePer, paceLeast), paceMost)
}

// How often a node may tell of itself: what it says more often replaces what it said, and the last is taken over
// when the time has come. A node that starts says several things in a row (interfaces, then STUN).
const (
	updateEvery = 500 * time.Millisecond
	updateBurst = 5
)

// Whole maps of a large network, sent to everybody at once after a restart, would take all memory. Messages longer
// than bulkLeast bytes are made while there is room for them in bulkMemory.
const (
	bulkLeast  = 64 << 10
	bulkMemory = 256 << 20
)

// A gate bounds the memory in use for messages on their way.
type gate struct {
	room *semaphore.Weighted
	size int64
}

func newGate(size int64) gate { return gate{semaphore.NewWeighted(size), size} }

// enter waits for room for n bytes. leave is to be called, unless there is an error.
func (g gate) enter(ctx context.Context, n int) (leave func(), err error) {
	if n < bulkLeast {
		return func() {}, nil
	}
	weight := min(int64(n), g.size)
	if err := g.room.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	return func() { g.room.Release(weight) }, nil
}

// newTicket makes a node's ticket, and says when it is to be renewed; zero: never.
func newTicket(network [8]byte, signing key.SigningPrivate, e *entry, now time.Time) (ticket []byte, renew time.Time) {
	end := now.Add(TicketLifetime)
	if !e.Expires.IsZero() && e.Expires.Before(end) {
		end = e.Expires
	} else {
		renew = now.Round(0).Add(TicketLifetime / 2) // by the wall clock, as relays judge it
	}
	return wire.SignTicket(nil, wire.Ticket{Node: e.ID, Network: network, Key: e.Key, NotAfter: end}, signing), renew
}

// clockCheck is how often it is looked whether the server's clock was put right by so much that tickets have ended
// before their time: relays go by the time of day, and drop streams within 15 s, bindings within 60 s.
const clockCheck = 10 * time.Second

// forever is a wait that somebody else ends.
const forever = 24 * time.Hour

// membership is what a node is told of: the network's map.
type membership struct {
	c *session

	// The map that the node has. With an epoch that is not ours the version means nothing.
	epoch   string
	version uint64
	begun   bool // the node has been sent a map or change on this stream

	held    string    // why the node is told nothing else; "": it is a member
	signsIn bool      // its person can be shown where to sign in
	paced   time.Time // not before
	renew   time.Time // the ticket; zero: never
	expires time.Time // what the ticket was made for
}

var errRemoved = sentence(weft.CodeRemoved, "this machine is not in the network any more: it left, or it was removed on the server; join again with a new token (weft up TOKEN)")

func (m *membership) news(snap *snapshot, now time.Time) (time.Duration, bool, error) {
	e, ok := snap.nodes.get(uint32(m.c.node))
	switch {
	case !ok:
		return 0, false, errRemoved
	case e.standing != member:
		return m.hold(e)
	case now.Before(m.paced):
		return m.paced.Sub(now), false, nil
	}
	m.held = ""
	var ticket []byte
	due := !m.begun || !m.renew.IsZero() && !now.Before(m.renew) || !m.expires.Equal(e.Expires)
	if due {
		ticket, m.renew = newTicket(snap.net.Name, m.c.s.keys.Signing, e, now)
		m.expires = e.Expires
	}
	if due || m.version != snap.version {
		if err := m.send(snap, e, ticket); err != nil {
			return 0, false, err
		}
		m.paced = now.Add(pace(snap.nodes.len()))
		return m.paced.Sub(now), false, nil
	}
	if m.renew.IsZero() {
		return forever, true, nil
	}
	return min(m.renew.Sub(now), clockCheck), true, nil
}

// hold tells a node that is no member why, once. When it is one again it gets the whole map.
func (m *membership) hold(e *entry) (time.Duration, bool, error) {
	m.begun, m.epoch = false, ""
	why := standingError(e)
	if e.standing == expired && m.c.note != "" {
		why.Message = m.c.note
	}
	if m.held == why.Message {
		return forever, true, nil
	}
	if m.signsIn && m.c.s.mayHaveSignedIn(e) { // first, so that nobody takes the refusal for the last word
		if err := m.c.offerSignIn(e.Name, e.system); err != nil {
			return 0, false, err
		}
	}
	m.held = why.Message
	return forever, true, m.c.send(wire.ServerMessage{Error: why})
}

// send brings the node up to a snapshot, by a change if that is known, else by the whole map.
func (m *membership) send(snap *snapshot, e *entry, ticket []byte) error {
	var changed []weft.NodeID
	delta := m.begun || m.epoch == m.c.s.epoch && m.version >= e.born
	if delta {
		changed, delta = snap.since(m.version)
	}
	if !delta && ticket == nil {
		ticket, m.renew = newTicket(snap.net.Name, m.c.s.keys.Signing, e, time.Now())
	}
	if delta && len(changed) == 0 && e.ruled <= m.version && max(snap.resolving.version, snap.law.settled) <= m.version && ticket == nil {
		m.version = snap.version // what is new is not this node's business
		return nil
	}
	size := e.rules.size()
	if delta {
		size += snap.changeSize(changed)
	} else {
		size += snap.mapSize()
	}
	leave, err := m.c.s.bulk.enter(m.c.ctx, size)
	if err != nil {
		return errClosing // the session's end has another reason, which came first
	}
	defer leave()
	b := make([]byte, 0, size)
	if delta {
		b = snap.appendChange(b, e.ID, m.version, changed, ticket)
	} else {
		b = snap.appendMap(b, e.ID, ticket)
	}
	m.version, m.begun = snap.version, true
	return m.c.sendBytes(b)
}

// station is what a stand-alone relay is told of: whose tickets are revoked.
type station struct {
	c     *session
	told  uint64
	paced time.Time
}

var errRelayRemoved = sentence(weft.CodeRemoved, "this relay is not in the network any more: it was removed on the server; give it a new token (weft admin key create --relay)")

func (r *station) news(snap *snapshot, now time.Time) (time.Duration, bool, error) {
	if _, ok := snap.relays.find(r.c.relay); !ok {
		return 0, false, errRelayRemoved
	}
	if now.Before(r.paced) {
		return r.paced.Sub(now), false, nil
	}
	if r.told != snap.revision {
		if err := r.c.send(wire.ServerMessage{Revoked: &wire.Revoked{Nodes: snap.revokedNodes()}}); err != nil {
			return 0, false, err
		}
		r.told, r.paced = snap.revision, now.Add(paceLeast)
		return paceLeast, false, nil
	}
	return forever, true, nil
}

// updates keeps a node from telling of itself more often than everybody can be told. Its zero value is ready.
type updates struct {
	mu      sync.Mutex
	next    time.Time    // when the one after a burst would be in time
	waiting *wire.Update // for its time; nil: none
}

// take takes over what a node said, now or when its time has come. It waits for the writer: a node that says much is
// read slowly.
func (u *updates) take(c *session, said *wire.Update) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting != nil {
		u.waiting = said
		return
	}
	now := time.Now()
	if u.next.Before(now) {
		u.next = now
	}
	wait := u.next.Sub(now) - (updateBurst-1)*updateEvery
	u.next = u.next.Add(updateEvery)
	if wait <= 0 {
		c.update(said)
		return
	}
	u.waiting = said
	time.AfterFunc(wait, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		c.update(u.waiting)
		u.waiting = nil
	})
}

func (c *session) update(said *wire.Update) {
	if err := c.s.do(c.ctx, func(t *tx) error { return t.update(c, said) }); err != nil && c.ctx.Err() == nil {
		c.say(nil, reason(err))
	}
}
