package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/control/store"
	"weft/key"
	"weft/wire"
)

const (
	// maxWords bounds what a machine says for people to read (its version and system, its NAT's behaviour), in bytes.
	maxWords = 64
	// maxRelays bounds the stand-alone relays: the list of all of them is sent whole.
	maxRelays = 1000
	// lowOrderTest is the purpose of a key agreement whose result nobody uses.
	lowOrderTest = "is this a key"
)

// sentence makes an error for the person at the machine.
func sentence(code weft.Code, format string, args ...any) *weft.Error {
	return &weft.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// check refuses what is wrong with a Hello whoever says it. The arithmetic in it would keep the writer from its work.
func (s *Server) check(h *wire.Hello) error {
	if r := h.Relay; r != nil {
		if err := wire.CheckServerURL(r.URL); err != nil {
			return sentence(weft.CodeBadRequest, "the relay has no usable URL: %v", err)
		}
		return checkKey(s, r.Key, "relay")
	}
	return checkKey(s, h.NodeKey, "node")
}

// checkKey refuses keys that are none, or of low order: what is agreed on with one of those is known to everybody.
func checkKey[R key.Role](s *Server, k key.Public[R], whose string) error {
	if k.IsZero() {
		return sentence(weft.CodeBadRequest, "the request has no %s key", whose)
	}
	if _, err := key.Agree(s.keys.Server, k, lowOrderTest); err != nil {
		return sentence(weft.CodeBadRequest, "the %s key is none that keeps a secret: remove this machine's state directory and join again", whose)
	}
	return nil
}

// admit lets the machine of a session in, or says why not.
func (t *tx) admit(c *session, h *wire.Hello) error {
	if h.Relay != nil {
		return t.admitRelay(c, h)
	}
	if _, ok := t.s.index.relays[c.machine]; ok {
		return sentence(weft.CodeDenied, "this machine's key is a relay's: run node and relay with a state directory each")
	}
	id, known := t.s.index.machines[c.machine]
	if !known && len(h.Secret) == 0 && t.s.signIn {
		user, ok := t.s.signIns.answered(c.machine, t.now)
		switch {
		case ok:
			return t.registerFor(c, h, user)
		case h.SignIn:
			return errSignIn
		}
	}
	if !known {
		return t.register(c, h)
	}
	found, _ := t.nodes.get(uint32(id))
	e := *found
	keep := false
	c.note = ""
	if t.standingOf(&e) == expired && len(h.Secret) > 0 {
		if err := t.reauthenticate(&e, h.Secret); err != nil {
			c.note = reason(err).Message
		} else {
			keep = true
		}
	}
	if e.Key != h.NodeKey {
		if err := t.checkUnused(h.NodeKey); err != nil {
			return err
		}
		if h.Rotation <= e.Rotation {
			return sentence(weft.CodeDenied, "this machine shows a node key that it has given up, or never had: its state directory is a copy of an old one; "+
				"remove the node (weft admin node remove %s), and join with a new token", e.Name)
		}
		e.Key, e.Rotation, e.Rotated, keep = h.NodeKey, h.Rotation, t.stamp(), true
		t.after = append(t.after, func() { c.log.Info("node has a new key", "node", e.Name, "id", e.ID) })
	}
	t.connect(c, h, e, keep)
	return nil
}

// checkUnused refuses a node key that is a node's already, for a machine that is known or has the right to be.
func (t *tx) checkUnused(k key.NodePublic) error {
	if _, ok := t.s.index.keys[k]; ok {
		return sentence(weft.CodeDenied, "this node key is another machine's: if the state directory was copied from there, remove it here and join again")
	}
	return nil
}

// unknown is what a machine hears that nobody knows and that has no key to join with.
var unknown = sentence(weft.CodeRemoved, "the server does not know this machine: it was removed, or it never joined; join with a new token (weft up TOKEN)")

// redeem checks the secret of a join key and counts its use.
func (t *tx) redeem(secret []byte, relay bool) (store.JoinKey, error) {
	k, ok := t.keyOf(secret)
	ask := "ask for a new one (weft admin key create)"
	switch {
	case len(secret) == 0:
		return k, unknown
	case !ok:
		return k, sentence(weft.CodeBadToken, "the server does not know this token: it was made by another server, or before its data was lost; %s", ask)
	case !k.Revoked.IsZero():
		return k, sentence(weft.CodeBadToken, "this token was withdrawn on the server: %s", ask)
	case relay && !k.Relay:
		return k, sentence(weft.CodeBadToken, "this token is for nodes: make one for a relay (weft admin key create --relay)")
	case !relay && k.Relay:
		return k, sentence(weft.CodeBadToken, "this token is for a relay (weft relay --token): make one for nodes (weft admin key create)")
	case !k.Reusable && k.Uses > 0:
		return k, sentence(weft.CodeSpentToken, "this token was for one machine and has been used: %s", ask)
	case k.User != "" && t.userOut(k.User):
		return k, sentence(weft.CodeBadToken, "the user %s, whose machines this token is for, is disabled or expired: ask an administrator", k.User)
	case ended(k.Expires, t.now):
		return k, sentence(weft.CodeExpiredToken, "this token ended on %s: %s", k.Expires.Format(time.DateTime+" MST"), ask)
	}
	k.Uses++
	k.Used = t.stamp()
	return k, nil
}

// register makes a node of a machine that is not known.
func (t *tx) register(c *session, h *wire.Hello) error {
	k, err := t.redeem(h.Secret, false)
	if err != nil {
		return err
	}
	t.putKey(k)
	return t.enrol(c, h, k)
}

// registerFor makes a node of a machine for which a user has signed in.
func (t *tx) registerFor(c *session, h *wire.Hello, user string) error {
	if t.userOut(user) {
		return sentence(weft.CodeDenied, "the user %s is disabled, expired or removed: ask an administrator", user)
	}
	t.after = append(t.after, func() { t.s.signIns.end(c.machine) })
	return t.enrol(c, h, store.JoinKey{User: user, NodeLifetime: t.s.signInFor})
}

// enrol makes a node of a machine that may be one, as a join key says.
func (t *tx) enrol(c *session, h *wire.Hello, k store.JoinKey) error {
	if err := t.checkUnused(h.NodeKey); err != nil {
		return err
	}
	e := entry{Node: store.Node{
		Machine: c.machine, Key: h.NodeKey, Name: t.s.index.names.free(h.Name), User: k.User, Tags: k.Tags,
		Ephemeral: k.Ephemeral, JoinKey: k.ID, Created: t.stamp(), Rotation: h.Rotation,
	}}
	if k.Approved || !t.s.approve {
		e.Approved = e.Created
	}
	if k.NodeLifetime > 0 {
		e.Expires = e.Created.Add(k.NodeLifetime).Truncate(store.Precision)
	}
	if err := t.number(&e); err != nil {
		return err
	}
	t.connect(c, h, e, true)
	t.after = append(t.after, func() {
		c.log.Info("node joined", "node", e.Name, "id", e.ID, "address", e.IPv4, "key", k.ID, "user", e.User, "remote", c.remote)
	})
	return nil
}

func (t *tx) setNetwork(n store.Network) { t.net, t.netChanged = n, true }

// connect makes a session the stream of its node.
func (t *tx) connect(c *session, h *wire.Hello, e entry, keep bool) {
	c.node = e.ID
	e.online, e.left = true, time.Time{}
	e.version, e.system, e.remote = words(h.Version), words(h.OS), c.remote
	t.putNode(e, keep)
	t.replace(t.setLive(e.ID, c), c)
}

var errReplaced = sentence(weft.CodeUnavailable, "this machine has connected anew: if that was not this one, two machines share a copied state directory, "+
	"and one of them must remove it and join again")

func (t *tx) replace(before, c *session) {
	if before != nil && before != c {
		t.after = append(t.after, func() { before.end(errReplaced) })
	}
}

// admitRelay lets a stand-alone relay in, or says why not.
func (t *tx) admitRelay(c *session, h *wire.Hello) error {
	if _, ok := t.s.index.machines[c.machine]; ok {
		return sentence(weft.CodeDenied, "this machine's key is a node's: run node and relay with a state directory each")
	}
	said := relayOf(h.Relay)
	id, known := t.s.index.relays[c.machine]
	for _, r := range t.relays.list {
		if r.Key == said.Key && r.ID != id {
			return sentence(weft.CodeDenied, "this relay key is that of the relay %s: if the state directory was copied from there, remove it here and join again", r.Name)
		}
	}
	e := relayEntry{connected: true, version: words(h.Version), remote: c.remote}
	alone := slices.Clone(t.relays.alone)
	if known {
		old, _ := t.relays.find(id)
		said.ID, said.Name = old.ID, old.Name
		e.Relay = store.Relay{Relay: said, Machine: old.Machine, Created: old.Created}
		alone[slices.IndexFunc(alone, func(r relayEntry) bool { return r.ID == id })] = e
		if !old.Relay.Relay.Equal(said) {
			t.durable = append(t.durable, store.PutRelay(e.Relay))
		}
		t.putRelays(alone, !old.Relay.Relay.Equal(said))
	} else {
		k, err := t.redeem(h.Secret, true)
		if err != nil {
			return err
		}
		n := t.net
		if len(alone) >= maxRelays || n.NextRelay == ^weft.RelayID(0) {
			return sentence(weft.CodeExhausted, "the network has as many relays as it can have: remove some (weft admin relay remove)")
		}
		said.ID, said.Name = n.NextRelay, t.freeRelayName(said.Name)
		n.NextRelay++
		t.setNetwork(n)
		t.putKey(k)
		e.Relay = store.Relay{Relay: said, Machine: c.machine, Created: t.stamp()}
		t.durable = append(t.durable, store.PutRelay(e.Relay))
		t.setRelayMachine(c.machine, said.ID)
		t.putRelays(append(alone, e), true)
		t.after = append(t.after, func() {
			c.log.Info("relay joined", "relay", said.Name, "id", said.ID, "url", said.URL, "remote", c.remote)
		})
	}
	c.relay = said.ID
	t.replace(t.setStation(said.ID, c), c)
	return nil
}

// relayOf makes a relay as maps have it, without number, of what one says of itself.
func relayOf(h *wire.HelloRelay) weft.Relay {
	r := weft.Relay{Name: "relay", Key: h.Key, URL: h.URL, UDPPort: h.UDPPort, Fingerprint: h.Fingerprint}
	if weft.CleanName(h.Name) != "" {
		r.Name = cleanWish(h.Name)
	}
	for _, a := range h.UDP {
		a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
		if usable(a) && !slices.Contains(r.UDP, a) {
			r.UDP = append(r.UDP, a)
		}
	}
	return r
}

func (t *tx) freeRelayName(wish string) string {
	taken := func(name string) bool {
		return slices.ContainsFunc(t.relays.list, func(r weft.Relay) bool { return r.Name == name })
	}
	name := wish
	for k := 2; taken(name); k++ {
		name = fmt.Sprintf("%.50s-%d", wish, k)
	}
	return name
}

// words makes something harmless of what a machine says for people to read.
func words(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), maxWords)]
}

// usable reports whether somebody may be reached at an address, in some network. A link-local address of IPv6 is
// none without the name that the link has on the peer's side.
func usable(a netip.AddrPort) bool {
	ip := a.Addr()
	return ip.IsValid() && a.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast() && ip != netip.AddrFrom4([4]byte{255, 255, 255, 255}) &&
		!(ip.Is6() && ip.IsLinkLocalUnicast())
}
