package rendezvous

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// A session serves one stream: a goroutine reads, another writes.
type session struct {
	s    *Server
	conn net.Conn
	log  *slog.Logger

	// The server's lock guards the rest, but wake. network is nil before the member has entered.
	network *network
	node    key.NodePublic
	pending map[key.NodePublic][]byte // what it has not been told: a record, or nil of one that is gone
	whole   bool                      // it has been told nothing yet
	claimed bool                      // it is to be told that its claim is stored
	turn    time.Time                 // when records are told next; zero: it has not been asked for
	paced   time.Time                 // not before
	due     time.Time                 // of its next ticket; zero: it has none
	heard   *wire.Beat
	refusal *weft.Error
	ended   bool
	wake    chan struct{} // of one place
}

// changed notes that a member changed, or is gone. The server's lock is held.
func (c *session) changed(node key.NodePublic, sealed []byte) {
	c.pending[node] = sealed
	if len(c.pending) > 2*wire.MaxMembers { // most are gone: it reads slowly, and is told all anew
		clear(c.pending)
		c.whole = true
		for k, m := range c.network.members {
			c.pending[k] = m.sealed
		}
	}
	c.nudge()
}

// renew has the session told its ticket. The server's lock is held.
func (c *session) renew() {
	c.due = time.Unix(0, 0)
	c.nudge()
}

func (c *session) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// serve serves the stream to its end; proved is called when it is a member's.
func (c *session) serve(proved func()) error {
	challenge := nonce()
	if err := writeMessage(c.conn, wire.RendezvousMessage{Challenge: &wire.Challenged{Nonce: challenge}}); err != nil {
		return err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(provePatience))
	b, err := readMessage(c.conn, wire.MaxMemberMessage)
	if err != nil {
		return err
	}
	m, err := wire.ParseMemberMessage(b)
	if err != nil || m.Enter == nil {
		return c.refuse(&weft.Error{Code: weft.CodeBadRequest, Message: "the first message must be Enter: is one of the two sides much older than the other?"})
	}
	if !m.Enter.Proves(challenge) {
		return c.refuse(&weft.Error{Code: weft.CodeDenied, Message: "the proof of membership is not good: the two words are not those of that network"})
	}
	if why := c.s.enter(c, m.Enter); why != nil {
		return c.refuse(why)
	}
	proved()
	c.log.Debug("a member entered", "network", ID(c.network.key), "node", c.node.Short())
	if err := writeMessage(c.conn, wire.RendezvousMessage{Entered: &wire.Entered{ServerVersion: weft.Version, Relay: c.s.cfg.Relay}}); err != nil {
		c.s.gone(c, false)
		return err
	}
	written := make(chan error, 1)
	go func() { written <- c.write() }()
	left, err := c.read()
	c.s.gone(c, left)
	c.end(err)
	if err2 := <-written; err == nil {
		err = err2
	}
	return err
}

// refuse tells why a stream ends, and leaves the other end the time to read it.
func (c *session) refuse(why *weft.Error) error {
	if err := writeMessage(c.conn, wire.RendezvousMessage{Refusal: why}); err == nil {
		c.linger()
	}
	return why
}

// end has the writer say what is left to say, and end.
func (c *session) end(err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	var why *weft.Error
	if errors.As(err, &why) {
		c.refusal = why
	}
	c.ended = true
	c.nudge()
}

// read takes in what the member says, until it leaves or says no more.
func (c *session) read() (left bool, err error) {
	var said bucket
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(Forget))
		b, err := readMessage(c.conn, wire.MaxMemberMessage)
		if err != nil {
			return false, err
		}
		if wait := said.take(time.Now(), 1, int(time.Second/saidEvery), saidBurst*saidEvery); wait > 0 {
			time.Sleep(wait) // nobody else waits for it: its own words do
		}
		m, err := wire.ParseMemberMessage(b)
		if err != nil {
			return false, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("the rendezvous does not understand this machine: %v", err)}
		}
		switch {
		case m.Leave != nil:
			return true, nil
		case m.Claim != nil:
			if why := c.s.claim(c, m.Claim); why != nil {
				return false, why
			}
		case m.Beat != nil:
			c.s.beat(c)
			c.s.mu.Lock()
			c.heard = m.Beat
			c.nudge()
			c.s.mu.Unlock()
		case m.Enter != nil:
			return false, &weft.Error{Code: weft.CodeBadRequest, Message: "Enter is said once"}
		}
	}
}

// A telling is what there is to say to a member now.
type telling struct {
	say   []wire.RendezvousMessage
	again time.Duration // look again then at the latest
	ended bool          // and it is the last
}

// news collects what there is to say. Records wait for their turn, and are told as they are then; answers to beats do not.
func (c *session) news(now time.Time) telling {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	t := telling{again: Forget, ended: c.ended}
	if c.heard != nil {
		t.say, c.heard = append(t.say, wire.RendezvousMessage{Heard: c.heard}), nil
	}
	if c.refusal != nil {
		t.say = append(t.say, wire.RendezvousMessage{Refusal: c.refusal})
	}
	ticket := !c.due.IsZero() && !now.Before(c.due)
	if !c.due.IsZero() {
		t.again = max(0, c.due.Sub(now))
	}
	if t.ended || !ticket && !c.whole && !c.claimed && len(c.pending) == 0 {
		return t
	}
	if c.turn.IsZero() { // it is paid for when it is first wanted
		c.turn = now.Add(max(s.pay(c.network, now, c.size()), c.paced.Sub(now)))
	}
	if now.Before(c.turn) {
		t.again = c.turn.Sub(now)
		return t
	}
	m := wire.Members{Whole: c.whole, Claimed: c.claimed}
	for k, sealed := range c.pending {
		if sealed == nil {
			m.Remove = append(m.Remove, k)
			continue
		}
		m.Upsert = append(m.Upsert, wire.Member{Node: k, Sealed: sealed})
	}
	clear(c.pending)
	if ticket {
		m.Ticket, c.due = s.ticket(c, now), time.Time{}
		if m.Ticket != nil {
			c.due = now.Add(ticketLife / 2)
			t.again = ticketLife / 2
		}
	}
	c.whole, c.claimed, c.turn = false, false, time.Time{}
	c.paced = now.Add(max(paceLeast, time.Duration(len(c.network.sessions))*pacePer))
	t.say = append(t.say, wire.RendezvousMessage{Members: &m})
	return t
}

// size is how many bytes the records make that the member has not been told. The server's lock is held.
func (c *session) size() (n int) {
	for _, sealed := range c.pending {
		n += key.Size + len(sealed)
	}
	return n
}

// write tells the member what there is to tell, until the session ends; then it closes the stream.
func (c *session) write() error {
	defer c.conn.Close()
	for {
		t := c.news(time.Now())
		for _, m := range t.say {
			if err := writeMessage(c.conn, m); err != nil {
				return err
			}
		}
		if t.ended {
			if c.refusal != nil {
				c.linger()
			}
			return nil
		}
		timer := time.NewTimer(t.again)
		select {
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// linger leaves the other end the time to read why it is refused: closing at once would discard, with what it has sent
// meanwhile, our last words (a TCP reset).
func (c *session) linger() {
	_ = c.conn.SetReadDeadline(time.Now().Add(lingering))
	for {
		if _, err := readMessage(c.conn, wire.MaxMemberMessage); err != nil {
			return
		}
	}
}
