package control

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"weft"
	"weft/control/signin"
	"weft/control/store"
	"weft/key"
	"weft/wire"
)

// Machines that wait for their person to sign in. They are in memory alone; a server that restarts gives them other
// addresses. What joins so is the person's, without tags, and has to be signed in for again when its time is over.

const (
	// maxSignIns bounds the machines that wait, and maxSignInsFrom those of one address: anybody may have a machine wait.
	maxSignIns     = 4096
	maxSignInsFrom = 32
)

// signIns are the machines that wait. Its zero value has none.
type signIns struct {
	mu       sync.Mutex
	byID     map[string]*signIn
	machines map[key.MachinePublic]*signIn
	from     map[string]int
}

// A signIn is one machine's.
type signIn struct {
	id, from string
	machine  key.MachinePublic
	stream   *session // the last that it came by
	shown    signin.Machine
	until    time.Time
	user     string        // who the person is; "" before
	done     chan struct{} // closed when user is set
}

// begin has a machine wait, or finds that it does already.
func (l *signIns) begin(c *session, name, system string, now time.Time) (*signIn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID, l.machines, l.from = make(map[string]*signIn), make(map[key.MachinePublic]*signIn), make(map[string]int)
	}
	for _, x := range l.byID {
		if !now.Before(x.until) {
			l.forget(x)
		}
	}
	if x, ok := l.machines[c.machine]; ok {
		if x.stream != c {
			x.stream.end(errReplaced)
			x.stream = c
		}
		return x, nil
	}
	from, _, err := net.SplitHostPort(c.remote)
	if err != nil {
		from = c.remote
	}
	if len(l.byID) >= maxSignIns || l.from[from] >= maxSignInsFrom {
		return nil, sentence(weft.CodeUnavailable, "too many machines wait for their people to sign in: try again in a quarter of an hour")
	}
	code := rand.Text() // base32: no character looks like another
	x := &signIn{
		id: rand.Text(), from: from, machine: c.machine, stream: c, until: now.Add(signin.Patience), done: make(chan struct{}),
		shown: signin.Machine{Name: cleanWish(name), System: words(system), Remote: from, Code: code[:4] + "-" + code[4:8]},
	}
	l.byID[x.id], l.machines[x.machine] = x, x
	l.from[from]++
	return x, nil
}

// forget is called with the lock held.
func (l *signIns) forget(x *signIn) {
	delete(l.byID, x.id)
	delete(l.machines, x.machine)
	if l.from[x.from]--; l.from[x.from] == 0 {
		delete(l.from, x.from)
	}
}

// find returns the machine of an address, while it waits for an answer.
func (l *signIns) find(id string, now time.Time) (*signIn, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.byID[id]
	if !ok || !now.Before(x.until) || x.user != "" {
		return nil, false
	}
	return x, true
}

// answer notes who the person is.
func (l *signIns) answer(x *signIn, user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.user == "" {
		x.user = user
		close(x.done)
	}
}

// answered returns who has signed in for a machine.
func (l *signIns) answered(machine key.MachinePublic, now time.Time) (user string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.machines[machine]
	if !ok || x.user == "" || !now.Before(x.until) {
		return "", false
	}
	return x.user, true
}

// end forgets a machine that is in.
func (l *signIns) end(machine key.MachinePublic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x, ok := l.machines[machine]; ok {
		l.forget(x)
	}
}

// errSignIn is admit's for a machine that may wait for its person; nobody hears it.
var errSignIn = sentence(weft.CodeSignIn, "somebody has to sign in for this machine")

// awaitSignIn tells a machine where its person signs in, and ends its stream when that has happened: it connects again,
// and is let in.
func (c *session) awaitSignIn(h *wire.Hello) error {
	x, err := c.s.signIns.begin(c, h.Name, h.OS, time.Now())
	if err != nil {
		return err
	}
	if c.send(x.message(c.s)) != nil {
		return errClosing
	}
	over := time.NewTimer(time.Until(x.until))
	defer over.Stop()
	for {
		select {
		case <-x.done:
			return sentence(weft.CodeUnavailable, "somebody has signed in for this machine: connect again")
		case <-over.C:
			return sentence(weft.CodeUnavailable, "nobody has signed in for this machine in time: try again")
		case <-c.ctx.Done():
			return errClosing
		case <-c.notice:
			for _, m := range c.answers() {
				if err := c.send(m); err != nil {
					return errClosing
				}
			}
		}
	}
}

// message is what the machine is told.
func (x *signIn) message(s *Server) wire.ServerMessage {
	return wire.ServerMessage{SignIn: &wire.SignIn{URL: s.url + signin.Path + x.id, Code: x.shown.Code, Until: x.until}}
}

// mayHaveSignedIn reports whether a node is let in again by its user's signing in.
func (s *Server) mayHaveSignedIn(e *entry) bool {
	return s.signIn && e.standing == expired && s.now.Load().users[e.User].Issuer != ""
}

// offerSignIn tells a node that is in no map where its user signs in. One for which there is no room goes without.
func (c *session) offerSignIn(name, system string) error {
	x, err := c.s.signIns.begin(c, name, system, time.Now())
	if err != nil {
		return nil
	}
	return c.send(x.message(c.s))
}

// hearPings reads what a machine says that is not in yet: signs of life.
func (c *session) hearPings() {
	defer c.end(nil)
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(SilenceTimeout))
		b, err := c.conn.ReadMessage(wire.MaxNodeMessage)
		if err != nil || c.ctx.Err() != nil {
			return
		}
		if m, err := wire.ParseNodeMessage(b); err != nil || m.Ping == nil {
			return
		} else {
			c.say(m.Ping, nil)
		}
	}
}

// Waiting implements [signin.Door].
func (s *Server) Waiting(id string) (signin.Machine, bool) {
	x, ok := s.signIns.find(id, time.Now())
	if !ok {
		return signin.Machine{}, false
	}
	return x.shown, true
}

// Admit implements [signin.Door].
func (s *Server) Admit(ctx context.Context, id string, who signin.Identity) error {
	x, ok := s.signIns.find(id, time.Now())
	if !ok {
		return sentence(weft.CodeNotFound, "the machine waits no longer")
	}
	return s.do(ctx, func(t *tx) error {
		u, err := t.userOf(who)
		if err != nil {
			return err
		}
		node, known := t.s.index.machines[x.machine]
		if !known {
			t.after = append(t.after, func() { s.signIns.answer(x, u.Name) })
			return nil
		}
		e, _ := t.nodes.get(uint32(node))
		if err := t.signedIn(*e, u); err != nil {
			return err
		}
		t.after = append(t.after, func() { s.signIns.end(x.machine) })
		return nil
	})
}

// signedIn lets an expired node in again whose user has signed in for it.
func (t *tx) signedIn(e entry, u store.User) error {
	if e.User != u.Name {
		return sentence(weft.CodeDenied, "the machine %s is not %s's but another user's", e.Name, u.Name)
	}
	if e.standing != expired {
		return nil
	}
	e.Expires = t.endOfSignIn()
	t.putNode(e, true)
	t.after = append(t.after, func() { t.s.log.Info("user signed in for a node again", "node", e.Name, "id", e.ID, "user", u.Name) })
	return nil
}

func (t *tx) endOfSignIn() time.Time {
	if t.s.signInFor == 0 {
		return time.Time{}
	}
	return t.stamp().Add(t.s.signInFor).Truncate(store.Precision)
}

// userOf finds the user with an identity, or makes one. What the provider says besides is noted. A name is never taken
// over from somebody else, whatever the e-mail address is: policies go by names.
func (t *tx) userOf(who signin.Identity) (store.User, error) {
	id, known := t.identities()[[2]string{who.Issuer, who.Subject}]
	u := t.users[id]
	if !known {
		u = store.User{Name: t.freeUserName(who), Created: t.stamp(), Issuer: who.Issuer, Subject: who.Subject}
		t.after = append(t.after, func() {
			t.s.log.Info("user made at the first sign-in", "user", u.Name, "issuer", u.Issuer, "subject", u.Subject)
		})
	}
	before := u
	u.Email, u.Display, u.Groups = who.Email, who.Name, who.Groups
	if !known || before.Email != u.Email || before.Display != u.Display || !sameTags(before.Groups, u.Groups) {
		t.putUser(u)
	}
	if t.userOut(u.Name) {
		return u, sentence(weft.CodeDisabled, "the user %s is disabled or expired: ask an administrator", u.Name)
	}
	return u, nil
}

func (t *tx) identities() map[[2]string]string {
	out := make(map[[2]string]string)
	for name, u := range t.users {
		if u.Issuer != "" {
			out[[2]string{u.Issuer, u.Subject}] = name
		}
	}
	return out
}

// freeUserName makes a name for who signs in for the first time: the e-mail address that the provider has verified, else one
// made of the subject. A number follows where somebody has the name, or the policy speaks of it.
func (t *tx) freeUserName(who signin.Identity) string {
	base := who.Email
	if !userName().MatchString(base) {
		base = "user-" + strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
				return r
			}
			return -1
		}, who.Subject)
	}
	base = base[:min(len(base), 56)]
	name := base
	for k := 2; ; k++ {
		if _, taken := t.users[name]; !taken && t.law.policy.Names(name) == 0 {
			return name
		}
		name = fmt.Sprintf("%s-%d", base, k)
	}
}

// LinkUser has a user be the one with an identity at the provider, or with none.
func (s *Server) LinkUser(ctx context.Context, name, issuer, subject string) (UserInfo, error) {
	return s.changeUser(ctx, name, func(t *tx, u *store.User) error {
		if (issuer == "") != (subject == "") {
			return sentence(weft.CodeBadRequest, "an identity is an issuer and a subject: give both, or none to take it away")
		}
		if other, ok := t.identities()[[2]string{issuer, subject}]; ok && other != name {
			return sentence(weft.CodeNameTaken, "that is the identity of %s already: remove that user, or take it away there first (weft admin user link %s)", other, other)
		}
		u.Issuer, u.Subject = issuer, subject
		return nil
	})
}
