package wire

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	"weft"
	"weft/key"
)

// Node and server exchange JSON documents over a stream of Noise messages (package stream): a request with
// exactly one field set, and whatever the server has to say, in its own time. Unknown fields are ignored, so
// that either side may be the newer one; an unknown request is answered with an error and nothing else breaks.

// Paths of the HTTP requests that become streams, and what they ask to be upgraded to.
const (
	ControlPath  = "/weft/control"
	RelayPath    = "/weft/relay"
	TokenPath    = "/weft/token" // GET gives the token of a server that lets people sign in; it holds no secret
	ControlProto = "weft-control/1"
	RelayProto   = "weft-relay/1"
)

// Bounds of a document's length in bytes. A map of 10,000 nodes with a dozen candidates each is some 12 MiB.
const (
	MaxNodeMessage   = 64 << 10
	MaxServerMessage = 32 << 20
)

// MaxHeard bounds the plain peers of one node: their numbers fit into an Update beside all candidates.
const MaxHeard = 1024

// A NodeMessage is what a node, or a stand-alone relay, says to the server. Exactly one field is set.
type NodeMessage struct {
	Hello  *Hello  `json:"hello,omitempty"`  // the first, once
	Update *Update `json:"update,omitempty"` // whenever something changed
	Logout *Logout `json:"logout,omitempty"` // the node leaves the network for good
	Ping   *Beat   `json:"ping,omitempty"`   // answered by Pong
}

// Hello presents a machine. Its machine key is the Noise handshake's, which has proved it.
type Hello struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	// Secret is a join token's; needed until the server knows the machine, ignored from then on.
	Secret  []byte         `json:"secret,omitempty"`
	NodeKey key.NodePublic `json:"node_key,omitzero"` // of a node
	// Rotation counts the node keys that the machine had before this one. One that is known and shows another key shows
	// a greater number with it, or is refused: keys that were given up stay so.
	Rotation uint32 `json:"rotation,omitempty"`
	Name     string `json:"name,omitempty"` // wished for
	// SignIn says that the machine can show its person where to sign in.
	SignIn bool        `json:"sign_in,omitempty"`
	Relay  *HelloRelay `json:"relay,omitempty"` // of a stand-alone relay
	// MapVersion and Epoch are of the last map the node holds; the server sends a full map all the same
	// when it cannot tell what changed since.
	Epoch      string `json:"epoch,omitempty"`
	MapVersion uint64 `json:"map_version,omitempty"`
}

// HelloRelay presents a stand-alone relay.
type HelloRelay struct {
	Key         key.RelayPublic  `json:"key"`
	Name        string           `json:"name"`
	URL         string           `json:"url"`
	UDP         []netip.AddrPort `json:"udp,omitempty"`
	UDPPort     uint16           `json:"udp_port,omitempty"`
	Fingerprint []byte           `json:"fingerprint,omitempty"`
}

// Update tells what changed at the node. Every field replaces what was said before.
type Update struct {
	Candidates []weft.Candidate `json:"candidates"`
	HomeRelay  weft.RelayID     `json:"home_relay,omitempty"`
	NAT        string           `json:"nat,omitempty"`
	// Heard are the plain WireGuard peers at this node that have a session with it.
	Heard []weft.NodeID `json:"heard,omitempty"`
	// Routes are the networks that the node offers to speak for.
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Logout removes the node.
type Logout struct{}

// Beat is a heartbeat: the number comes back.
type Beat struct {
	N uint64 `json:"n"`
}

// A ServerMessage is what the server says. Exactly one field is set.
type ServerMessage struct {
	Welcome *Welcome         `json:"welcome,omitempty"` // the answer to Hello
	Map     *weft.NetworkMap `json:"map,omitempty"`     // the whole map, after Welcome
	Change  *weft.Change     `json:"change,omitempty"`  // from then on
	Revoked *Revoked         `json:"revoked,omitempty"` // to relays
	SignIn  *SignIn          `json:"sign_in,omitempty"` // before Welcome, or to a node that is in no map
	Error   *weft.Error      `json:"error,omitempty"`   // and, where its code is permanent, the end
	Pong    *Beat            `json:"pong,omitempty"`
}

// Welcome says who the node is.
type Welcome struct {
	ServerVersion string            `json:"server_version"`
	Epoch         string            `json:"epoch"` // changes when versions start again
	Node          weft.NodeID       `json:"node,omitempty"`
	Relay         weft.RelayID      `json:"relay,omitempty"`
	Signing       key.SigningPublic `json:"signing,omitzero"` // whose tickets a relay admits
	Network       string            `json:"network"`
}

// SignIn tells where the machine's person signs in, until when, and the code that the page has to show, too.
type SignIn struct {
	URL   string    `json:"url"`
	Code  string    `json:"code"`
	Until time.Time `json:"until"`
}

// check keeps from terminals what plays tricks on them.
func (s *SignIn) check() error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsFunc(s.URL+s.Code, func(r rune) bool { return r <= ' ' || r > '~' }) || len(s.Code) > maxWord || len(s.URL) > 2*maxWord {
		return fmt.Errorf("%w: a sign-in with no usable URL or code", ErrFrame)
	}
	return nil
}

// Revoked lists nodes whose tickets a relay no longer honours, though their end has not come: all of them.
type Revoked struct {
	Nodes []weft.NodeID `json:"nodes"`
}

// maxWord is the longest text in bytes that a node may have the server keep and show to others: a host name
// (RFC 1035 section 2.3.4) or a URL.
const maxWord = 255

// ParseNodeMessage reads and checks what a node said. What others are going to be told or shown is bounded and
// free of control characters; candidates that nothing can be sent to are left out.
func ParseNodeMessage(b []byte) (NodeMessage, error) {
	var m NodeMessage
	if err := parseDocument(b, MaxNodeMessage, &m); err != nil {
		return m, err
	}
	if n := set(m.Hello != nil, m.Update != nil, m.Logout != nil, m.Ping != nil); n != 1 {
		return m, fmt.Errorf("%w: %d requests in one document, not one", ErrFrame, n)
	}
	switch {
	case m.Update != nil:
		return m, m.Update.check()
	case m.Hello != nil:
		return m, m.Hello.check()
	}
	return m, nil
}

func (u *Update) check() error {
	if len(u.Candidates) > MaxCandidates {
		return fmt.Errorf("%w: %d candidates, more than %d", ErrFrame, len(u.Candidates), MaxCandidates)
	}
	if len(u.Heard) > MaxHeard {
		return fmt.Errorf("%w: %d plain peers, more than %d", ErrFrame, len(u.Heard), MaxHeard)
	}
	u.Candidates = cleanCandidates(u.Candidates)
	return checkWords(u.NAT)
}

func (h *Hello) check() error {
	if r := h.Relay; r != nil {
		if len(r.UDP) > MaxCandidates || len(r.Fingerprint) != 0 && len(r.Fingerprint) != sha256.Size {
			return fmt.Errorf("%w: a relay with %d addresses and a fingerprint of %d bytes", ErrFrame,
				len(r.UDP), len(r.Fingerprint))
		}
		if err := checkWords(r.Name, r.URL); err != nil {
			return err
		}
	}
	return checkWords(h.Version, h.OS, h.Name, h.Epoch)
}

func checkWords(words ...string) error {
	for _, w := range words {
		if len(w) > maxWord || strings.ContainsFunc(w, unicode.IsControl) {
			return fmt.Errorf("%w: a text of %d bytes that is too long or holds control characters", ErrFrame, len(w))
		}
	}
	return nil
}

// cleanCandidates filters in place.
func cleanCandidates(list []weft.Candidate) []weft.Candidate {
	kept := list[:0]
	for _, x := range list {
		if x, ok := cleanCandidate(x); ok {
			kept = append(kept, x)
		}
	}
	return kept
}

// ParseServerMessage reads and checks what the server said. Candidates that nothing can be sent to, or of a kind
// that only newer nodes know, are left out.
func ParseServerMessage(b []byte) (ServerMessage, error) {
	var m ServerMessage
	if err := parseDocument(b, MaxServerMessage, &m); err != nil {
		return m, err
	}
	if n := set(m.Welcome != nil, m.Map != nil, m.Change != nil, m.Revoked != nil, m.SignIn != nil, m.Error != nil, m.Pong != nil); n > 1 {
		return m, fmt.Errorf("%w: %d answers in one document, not one", ErrFrame, n)
	}
	if m.Map != nil {
		m.Map.Self.Candidates = cleanCandidates(m.Map.Self.Candidates)
		cleanNodes(m.Map.Peers)
	}
	if m.Change != nil {
		if self := m.Change.Self; self != nil {
			self.Candidates = cleanCandidates(self.Candidates)
		}
		cleanNodes(m.Change.Upsert)
	}
	if m.SignIn != nil {
		return m, m.SignIn.check()
	}
	return m, nil // none: a newer server's, to be passed over
}

func cleanNodes(nodes []weft.Node) {
	for i := range nodes {
		nodes[i].Candidates = cleanCandidates(nodes[i].Candidates)
	}
}

func parseDocument(b []byte, limit int, into any) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, more than %d", ErrFrame, len(b), limit)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%w: %v", ErrFrame, err)
	}
	return nil
}

func set(fields ...bool) (n int) {
	for _, f := range fields {
		if f {
			n++
		}
	}
	return n
}
