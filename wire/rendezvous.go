package wire

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"

	"weft"
	"weft/key"
)

// A network of two words has no coordinator. Its members meet at a rendezvous, which keeps for each a record that it can
// neither read nor forge, and shows the records of a network to its members. What they say to each other are JSON documents,
// each behind its length in four bytes, over a stream that nothing rests on: members prove that they are, by a signature,
// and records prove themselves when they are opened.

// Where the stream is found, and what is asked to be upgraded to.
const (
	RendezvousPath  = "/weft/rendezvous"
	RendezvousProto = "weft-rendezvous/1"
)

// Bounds of lengths in bytes. A record of a member with MaxCandidates candidates is some 3 KiB; MaxRendezvousMessage has
// the longest records of MaxMembers.
const (
	MaxSealed            = 8 << 10
	MaxMemberMessage     = 16 << 10
	MaxRendezvousMessage = 16 << 20
)

// MaxMembers bounds the members of one network at a rendezvous.
const MaxMembers = 1024

// RendezvousNonceSize is the length in bytes of what a member signs to prove that it is one.
const RendezvousNonceSize = 32

const (
	enterContext  = "weft rendezvous v1\x00"
	nameContext   = "weft rendezvous name v1\x00"
	recordContext = "weft record v1\x00"
)

// A MemberMessage is what a member says to the rendezvous. Exactly one field is set.
type MemberMessage struct {
	Enter *Enter `json:"enter,omitempty"` // the answer to Challenge, once
	Claim *Claim `json:"claim,omitempty"` // whenever the record changed
	Beat  *Beat  `json:"beat,omitempty"`  // answered by Heard
	Leave *Leave `json:"leave,omitempty"` // the member is to be forgotten at once
}

// Enter presents a member. It is shown the others from then on; of it they are shown nothing before it claims a number.
type Enter struct {
	Version string            `json:"version"`
	Network key.SigningPublic `json:"network"` // derived from the two words: who has them can sign by it
	// Name is NameTag of the network's name. Two networks of one name are told apart by their keys; by the name a
	// mistyped secret is known for one.
	Name []byte         `json:"name"`
	Node key.NodePublic `json:"node"`
	// Known says that this node was in the network before, and so needs no warning of a mistyped secret.
	Known bool   `json:"known,omitempty"`
	Proof []byte `json:"proof"` // SignEnter
}

// Claim stores a member's record, in the place of any that it had.
type Claim struct {
	Number weft.NodeID `json:"number"` // in the network: its relay ticket is made out to this
	Sealed []byte      `json:"sealed"` // SealRecord
}

// Leave ends a membership at the rendezvous.
type Leave struct{}

// A RendezvousMessage is what the rendezvous says. Exactly one field is set.
type RendezvousMessage struct {
	Challenge *Challenged `json:"challenge,omitempty"` // the first
	Entered   *Entered    `json:"entered,omitempty"`   // the answer to Enter
	Members   *Members    `json:"members,omitempty"`   // from then on, at every change
	Heard     *Beat       `json:"heard,omitempty"`
	Refusal   *weft.Error `json:"refusal,omitempty"` // and the end
}

// Challenged asks for a proof of membership.
type Challenged struct {
	Nonce []byte `json:"nonce"` // RendezvousNonceSize, drawn for this stream
}

// Entered says that the proof is good.
type Entered struct {
	ServerVersion string      `json:"server_version"`
	Relay         *weft.Relay `json:"relay,omitempty"` // beside the rendezvous: its tickets admit there
}

// Members are records of a network's members.
type Members struct {
	Whole  bool             `json:"whole,omitempty"` // these are all; otherwise what changed
	Upsert []Member         `json:"upsert,omitempty"`
	Remove []key.NodePublic `json:"remove,omitempty"`
	// Claimed says that all that was claimed so far is stored, and that what others claimed before it is in this message
	// or was in one before.
	Claimed bool `json:"claimed,omitempty"`
	// Ticket admits to the relay, by the number that was claimed; there is none while another member has that number.
	Ticket []byte `json:"relay_ticket,omitempty"`
}

// A Member is a record as the rendezvous has it.
type Member struct {
	Node   key.NodePublic `json:"node"`
	Sealed []byte         `json:"sealed"`
}

// A Record is what members tell each other, sealed. Times are milliseconds of Unix time by the member's own clock.
type Record struct {
	Made  int64          `json:"made"`  // of two records of a node the later counts
	Since int64          `json:"since"` // when it took its address: of two members with one address, the earlier has it
	Node  key.NodePublic `json:"node"`
	Name  string         `json:"name"`
	// Address is the overlay address, with the length of the network's range: 10.0.0.10/16.
	Address    netip.Prefix     `json:"address"`
	Candidates []weft.Candidate `json:"candidates,omitempty"`
	NAT        string           `json:"nat,omitempty"`
}

// NameTag is what a network's name is known by to a rendezvous, which has no use for the name itself.
func NameTag(name string) []byte {
	sum := sha256.Sum256([]byte(nameContext + name))
	return sum[:]
}

func entering(nonce []byte, node key.NodePublic) []byte {
	return node.Append(append([]byte(enterContext), nonce...))
}

// SignEnter proves to who sent the nonce that a node knows a network's two words.
func SignEnter(nonce []byte, node key.NodePublic, network key.SigningPrivate) []byte {
	return network.Sign(nil, entering(nonce, node))
}

// Proves reports whether the sender of an Enter knows the two words of the network that it names.
func (e Enter) Proves(nonce []byte) bool {
	return len(nonce) == RendezvousNonceSize && e.Network.Verify(entering(nonce, e.Node), e.Proof)
}

// SealRecord seals a record for the network whose box it is.
func SealRecord(r Record, box key.Box) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sealed := box.Seal(nil, b, r.Node.Append([]byte(recordContext)))
	if len(sealed) > MaxSealed {
		return nil, fmt.Errorf("%w: a record of %d bytes, more than %d", ErrFrame, len(sealed), MaxSealed)
	}
	return sealed, nil
}

// OpenRecord opens and checks the record of a member.
func OpenRecord(m Member, box key.Box) (Record, error) {
	plain, err := box.Open(nil, m.Sealed, m.Node.Append([]byte(recordContext)))
	if err != nil {
		return Record{}, err
	}
	return parseRecord(plain, m.Node)
}

func parseRecord(plain []byte, node key.NodePublic) (Record, error) {
	var r Record
	if err := parseDocument(plain, MaxSealed, &r); err != nil {
		return Record{}, err
	}
	switch err := CheckRendezvousAddress(r.Address); {
	case err != nil:
		return Record{}, fmt.Errorf("%w: %v", ErrFrame, err)
	case r.Node != node || r.Node.IsZero():
		return Record{}, fmt.Errorf("%w: a record of another node", ErrFrame)
	case r.Name == "" || r.Name != weft.CleanName(r.Name):
		return Record{}, fmt.Errorf("%w: a name that is no DNS label", ErrFrame)
	case len(r.Candidates) > MaxCandidates:
		return Record{}, fmt.Errorf("%w: %d candidates, more than %d", ErrFrame, len(r.Candidates), MaxCandidates)
	}
	r.Candidates = cleanCandidates(r.Candidates)
	return r, checkWords(r.NAT)
}

// CheckRendezvousAddress says what is wrong with an overlay address that a member chose.
func CheckRendezvousAddress(p netip.Prefix) error {
	a := p.Addr()
	switch {
	case !p.IsValid() || !a.Is4() || p.Bits() < 8 || p.Bits() > 30:
		return fmt.Errorf("%v is no address of an overlay: give an IPv4 address with the length of the network's range, 8 to 30, such as 10.0.0.10/16", p)
	case a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.As4()[0] == 0 || a.As4()[0] >= 240:
		return fmt.Errorf("%v cannot be an overlay's: these addresses have another use (a private range is a good choice)", a)
	case a == p.Masked().Addr():
		return fmt.Errorf("%v is the network itself: choose another address of %v", a, p.Masked())
	case a == RendezvousService(p) || a == lastAddr(p):
		return fmt.Errorf("%v is kept for names and broadcasts: choose an address below %v", a, RendezvousService(p))
	}
	return nil
}

// RendezvousService is where the nodes of a network of two words answer for names: the last address but one of its range.
func RendezvousService(p netip.Prefix) netip.Addr { return lastAddr(p).Prev() }

// lastAddr is the last address of an IPv4 range, the broadcast address.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// ParseMemberMessage reads and checks what a member said.
func ParseMemberMessage(b []byte) (MemberMessage, error) {
	var m MemberMessage
	if err := parseDocument(b, MaxMemberMessage, &m); err != nil {
		return m, err
	}
	if n := set(m.Enter != nil, m.Claim != nil, m.Beat != nil, m.Leave != nil); n != 1 {
		return m, fmt.Errorf("%w: %d requests in one document, not one", ErrFrame, n)
	}
	switch {
	case m.Enter != nil && (len(m.Enter.Name) != sha256.Size || m.Enter.Network.IsZero() || m.Enter.Node.IsZero()):
		return m, fmt.Errorf("%w: a member of no network", ErrFrame)
	case m.Enter != nil:
		return m, checkWords(m.Enter.Version)
	case m.Claim != nil && (m.Claim.Number == 0 || len(m.Claim.Sealed) == 0 || len(m.Claim.Sealed) > MaxSealed):
		return m, fmt.Errorf("%w: a record of %d bytes for number %d", ErrFrame, len(m.Claim.Sealed), m.Claim.Number)
	}
	return m, nil
}

// ParseRendezvousMessage reads and checks what a rendezvous said.
func ParseRendezvousMessage(b []byte) (RendezvousMessage, error) {
	var m RendezvousMessage
	if err := parseDocument(b, MaxRendezvousMessage, &m); err != nil {
		return m, err
	}
	if n := set(m.Challenge != nil, m.Entered != nil, m.Members != nil, m.Heard != nil, m.Refusal != nil); n > 1 {
		return m, fmt.Errorf("%w: %d answers in one document, not one", ErrFrame, n)
	}
	switch {
	case m.Challenge != nil && len(m.Challenge.Nonce) != RendezvousNonceSize:
		return m, fmt.Errorf("%w: a challenge of %d bytes", ErrFrame, len(m.Challenge.Nonce))
	case m.Members != nil && len(m.Members.Upsert) > MaxMembers:
		return m, fmt.Errorf("%w: %d members, more than %d", ErrFrame, len(m.Members.Upsert), MaxMembers)
	}
	return m, nil // none: a newer one's, to be passed over
}
