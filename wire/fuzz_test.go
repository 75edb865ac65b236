package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/key"
)

// addGoldens seeds a target with the golden frames whose name begins so, and with the edges of a parser.
func addGoldens(f *testing.F, prefix string) {
	f.Helper()
	for name, b := range readFrames(f, filepath.Join("testdata", "frames.golden")) {
		if strings.HasPrefix(name, prefix) {
			f.Add(b)
			f.Add(b[:len(b)-1])
			f.Add(append(bytes.Clone(b), 0))
		}
	}
	f.Add([]byte{})
	f.Add([]byte{Magic, Version, 0, 0})
	f.Add([]byte{Magic, Version + 1, byte(KindPeer), 0})
}

func FuzzClassify(f *testing.F) {
	addGoldens(f, "")
	f.Add([]byte{1, 0, 0, 0})
	f.Add(append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 12)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		class := Classify(b)
		kind, ok := KindOf(b)
		if ok && (class != ClassWeft || kind < KindPeer || kind > KindProbed) {
			t.Errorf("a frame of kind %d is of class %d", kind, class)
		}
		// What is behind the first bytes says nothing about the protocol.
		if len(b) >= 20 && class != Classify(b[:20]) {
			t.Errorf("%x is of class %d, and its first 20 bytes are of class %d", b, class, Classify(b[:20]))
		}
		// At most one parser takes it.
		var taken []string
		for name, parse := range map[string]func() error{
			"peer":      func() error { _, err := PeerSender(b); return err },
			"data":      func() error { _, _, err := ParseData(b); return err },
			"bind":      func() error { _, err := ParseBind(b); return err },
			"challenge": func() error { _, err := ParseChallenge(b); return err },
			"bound":     func() error { _, err := ParseBound(b, boxAR); return err },
			"refused":   func() error { _, _, err := ParseRefused(b); return err },
			"locate":    func() error { _, err := ParseLocate(nil, b, boxRA); return err },
			"located":   func() error { _, err := ParseLocated(b, boxAR); return err },
			"probe":     func() error { _, err := ParseProbe(nil, b, boxRA); return err },
			"probed":    func() error { _, err := ParseProbed(b, boxAR); return err },
		} {
			if parse() == nil {
				taken = append(taken, name)
			}
		}
		if len(taken) > 1 || len(taken) == 1 && !ok {
			t.Errorf("%x of class %d is taken for %v", b, class, taken)
		}
	})
}

func FuzzOpenPeer(f *testing.F) {
	addGoldens(f, "peer-")
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := OpenPeer(b, boxBA)
		id, errSender := PeerSender(b)
		if errSender != nil && err == nil {
			t.Error("a frame without a sender opens")
		}
		if err != nil {
			return
		}
		again, err := OpenPeer(AppendPeer(nil, boxAB, id, m), boxBA)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%v comes back as %v, %v", m, again, err)
		}
	})
}

func FuzzParsePeerMessage(f *testing.F) {
	addGoldens(f, "message-")
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParsePeerMessage(b)
		// The same through the seal.
		frame := boxAB.Seal([]byte{Magic, Version, byte(KindPeer), 0, 0, 0, 0, 7}, b, []byte{Magic, Version, byte(KindPeer), 0, 0, 0, 0, 7})
		opened, errOpened := OpenPeer(frame, boxBA)
		if (errOpened == nil) != (err == nil) || err == nil && !reflect.DeepEqual(m, opened) {
			t.Fatalf("parsed %v, %v; opened %v, %v", m, err, opened, errOpened)
		}
		if err != nil {
			return
		}
		out := m.append(nil)
		again, err := ParsePeerMessage(out)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%v comes back as %v, %v", m, again, err)
		}
		if canonical(b, m) && !bytes.Equal(out, b) {
			t.Fatalf("%x is written again as %x", b, out)
		}
	})
}

// canonical reports that b is what append makes of m: no reserved bit is set, nothing was passed over, and no
// address was written in another way.
func canonical(b []byte, m PeerMessage) bool {
	zero := func(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }
	mappedZeros := bytes.Contains(b, append(append(make([]byte, 10), 0xFF, 0xFF), make([]byte, 6)...))
	switch m := m.(type) {
	case Ping:
		return b[1] == 0 && zero(b[12:])
	case Pong:
		return !mappedZeros
	case Candidates:
		for i := range m.List {
			if b[12+i*candidateSize+addrSize+1]&^candidateTCP != 0 {
				return false
			}
		}
		end := 12 + int(b[2])*candidateSize
		return b[1]&^1 == 0 && b[3] == 0 && len(m.List) == int(b[2]) && len(b) > end && bytes.Equal(appendNAT(nil, m.NAT), b[end+8:][:natSize])
	case Attempt:
		return b[3]&^1 == 0 && zero(b[22:24])
	case Links:
		for i, x := range m.List {
			if !bytes.Equal(appendNAT(nil, x.NAT), b[12+i*linkSize+2:][:natSize]) {
				return false
			}
		}
		return b[1] == 0 && b[3] == 0
	case Uplinks:
		return b[1] == 0
	case Portal: // addresses that are none, and what only an offer has, are passed over
		return bytes.Equal(m.append(nil), b)
	case Report:
		for i := range m.Paths {
			if !zero(b[4+i*reportSize+2:][:2]) {
				return false
			}
		}
		return b[1] == 0 && b[3] == 0
	}
	return false
}

func FuzzParseTicket(f *testing.F) {
	addGoldens(f, "ticket")
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := ParseTicket(b)
		verified, refusal := VerifyTicket(b, signing.Public(), time.Unix(0, 0))
		if refusal == RefusedNot && (err != nil || !reflect.DeepEqual(parsed, verified)) {
			t.Fatalf("verified %v, parsed %v, %v", verified, parsed, err)
		}
		if err != nil {
			return
		}
		if parsed.Node == 0 {
			t.Fatal("a ticket of nobody")
		}
		out := SignTicket(nil, parsed, signing)
		again, err := ParseTicket(out)
		if err != nil || !again.NotAfter.Equal(parsed.NotAfter) || again.Node != parsed.Node || again.Key != parsed.Key {
			t.Fatalf("%v comes back as %v, %v", parsed, again, err)
		}
		if b[1] == 0 && b[2] == 0 && b[3] == 0 && !bytes.Equal(out[:ticketBody], b[:ticketBody]) {
			t.Fatalf("%x is written again as %x", b[:ticketBody], out[:ticketBody])
		}
		if refusal == RefusedNot && !bytes.Equal(out, b) {
			t.Fatal("two tickets of one node and one end") // Ed25519 signs in one way, and reserved bytes are signed
		}
	})
}

func FuzzParseBind(f *testing.F) {
	addGoldens(f, "bind")
	f.Fuzz(func(t *testing.T, b []byte) {
		bind, err := ParseBind(b)
		if err != nil {
			if bind.Proves(boxRA) {
				t.Error("what is no Bind proves something")
			}
			return
		}
		bind.Proves(boxRA)
		out := AppendBind(nil, bind, boxAR)
		if len(out) != len(b) || !bytes.Equal(out[:bindSealedAt], b[:bindSealedAt]) {
			t.Fatalf("%x is written again as %x", b, out)
		}
		if again, err := ParseBind(out); err != nil || !again.Proves(boxRA) {
			t.Fatalf("%v", err)
		}
		VerifyTicket(bind.Ticket, signing.Public(), time.Unix(0, 0))
	})
}

func FuzzParseChallenge(f *testing.F) {
	addGoldens(f, "challenge")
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseChallenge(b); err == nil && !bytes.Equal(AppendChallenge(nil, c), b) {
			t.Errorf("%x is written again as %x", b, AppendChallenge(nil, c))
		}
	})
}

// FuzzParseBound takes a frame as it came, and the same as a plaintext that a relay sealed.
func FuzzParseBound(f *testing.F) {
	addGoldens(f, "bound")
	f.Add(binary.BigEndian.AppendUint32(nil, 60))
	f.Add(make([]byte, 4+addrSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := ParseBound(b, boxAR); err == nil && len(b) != 62 {
			t.Errorf("a Bound of %d bytes", len(b))
		}
		head := append(appendHeader(nil, KindBound), make([]byte, 8)...)
		bound, err := ParseBound(boxRA.Seal(head, b, head), boxAR)
		if (err == nil) != (len(b) == 4+addrSize) {
			t.Fatalf("a sealed plaintext of %d bytes: %v", len(b), err)
		}
		if err != nil {
			return
		}
		if again, err := ParseBound(AppendBound(nil, bound, boxRA), boxAR); err != nil || again != bound {
			t.Fatalf("%v comes back as %v, %v", bound, again, err)
		}
	})
}

func FuzzParseRefused(f *testing.F) {
	addGoldens(f, "refused")
	f.Fuzz(func(t *testing.T, b []byte) {
		nonce, r, err := ParseRefused(b)
		if err != nil {
			return
		}
		out := AppendRefused(nil, nonce, r)
		if r == RefusedNot || r.String() == "" || !bytes.Equal(out[:13], b[:13]) || len(out) != len(b) {
			t.Errorf("%x is written again as %x", b, out)
		}
	})
}

func FuzzParseData(f *testing.F) {
	addGoldens(f, "data")
	f.Fuzz(func(t *testing.T, b []byte) {
		id, payload, err := ParseData(b)
		if err != nil {
			return
		}
		if out := append(AppendData(nil, id), payload...); !bytes.Equal(out, b) {
			t.Fatalf("%x is written again as %x", b, out)
		}
		SetDataID(b, ^id)
		if again, same, err := ParseData(b); err != nil || again != ^id || !bytes.Equal(same, payload) {
			t.Fatalf("with another ID: %d, %v", again, err)
		}
	})
}

func FuzzParseStreamHeader(f *testing.F) {
	addGoldens(f, "stream-")
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, n, err := ParseStreamHeader(b)
		if err == nil && !bytes.Equal(AppendStreamHeader(nil, typ, n), b[:StreamHeaderSize]) {
			t.Errorf("%x is written again as %x", b[:StreamHeaderSize], AppendStreamHeader(nil, typ, n))
		}
	})
}

func FuzzParseStreamBind(f *testing.F) {
	for _, b := range readFrames(f, filepath.Join("testdata", "frames.golden")) {
		if len(b) > StreamHeaderSize {
			f.Add(b[StreamHeaderSize:], []byte("nonce of hello.."))
		}
	}
	f.Fuzz(func(t *testing.T, b, nonce []byte) {
		ticket, proof, err := ParseStreamBind(b)
		if err != nil {
			return
		}
		if !bytes.Equal(append(bytes.Clone(ticket), proof...), b) {
			t.Fatal("ticket and proof are not the body")
		}
		StreamBindProves(nonce, ticket, proof, boxRA)
		out := AppendStreamBind(nil, nonce, ticket, boxAR)
		again, proof, err := ParseStreamBind(out[StreamHeaderSize:])
		if err != nil || !bytes.Equal(again, ticket) || !StreamBindProves(nonce, again, proof, boxRA) {
			t.Fatalf("%v", err)
		}
	})
}

func FuzzParseStreamBound(f *testing.F) {
	f.Add(readFrames(f, filepath.Join("testdata", "frames.golden"))["stream-bound"][StreamHeaderSize:], []byte("nonce of hello.."))
	f.Add([]byte{0, 0, 0, 60}, make([]byte, StreamNonceSize))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, b, nonce []byte) {
		if _, err := ParseStreamBound(b, nonce, boxAR); err == nil && len(b) != 4+key.Overhead {
			t.Errorf("a Bound of %d bytes", len(b))
		}
		lifetime, err := ParseStreamBound(boxRA.Seal(nil, b, append([]byte("stream bound\x00"), nonce...)), nonce, boxAR)
		if (err == nil) != (len(b) == 4) {
			t.Fatalf("a sealed plaintext of %d bytes: %v", len(b), err)
		}
		if err != nil {
			return
		}
		out := AppendStreamBound(nil, nonce, lifetime, boxRA)
		if again, err := ParseStreamBound(out[StreamHeaderSize:], nonce, boxAR); err != nil || again != lifetime {
			t.Fatalf("%v comes back as %v, %v", lifetime, again, err)
		}
	})
}

// FuzzParseToken takes a text as somebody pasted it, and the same as the content of a token whose check is right.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"", TokenPrefix, fixedToken().String(), fixedToken().String()[:40], "weft1_\n=", "\xff"} {
		f.Add(s)
	}
	head := "\x00" + strings.Repeat("k", key.Size) + strings.Repeat("s", TokenSecretSize)
	for _, s := range []string{head + "\x09https://a", "\x01" + head[1:] + strings.Repeat("f", 32) + "\x08http://a", "\x04" + head[1:] + "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, text := range []string{s, assemble([]byte(s))} {
			token, err := ParseToken(text)
			if err != nil {
				if weft.CodeOf(err) != weft.CodeBadToken || err.Error() == "" {
					t.Fatalf("%q: %v", text, err)
				}
				continue
			}
			if err := CheckServerURL(token.URL); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if again := token.String(); again != strings.Join(strings.Fields(text), "") {
				t.Fatalf("%q is written again as %q", text, again)
			}
		}
	})
}

func FuzzCheckServerURL(f *testing.F) {
	for _, s := range []string{"", "https://a", "http://[::1]:1/a", "https://u:p@h", "https://h:0", "https://%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := CheckServerURL(s); err == nil && (len(s) > 255 || strings.ContainsAny(s, " \n\x00\x1b?#")) {
			t.Errorf("%q passes", s)
		}
	})
}

// documents seeds a target with the golden documents of one side.
func addDocuments[M any](f *testing.F, messages map[string]M) {
	for _, m := range messages {
		f.Add(must(json.Marshal(m)))
	}
	for _, s := range []string{"", "{}", "null", "[]", `{"ping":{"n":1},"pong":{"n":1}}`, `{"hello":{"secret":"!"}}`,
		`{"update":{"candidates":[{"addr":"[fe80::1%a]:1","kind":"host"}]}}`, `{"map":{"peers":[{"candidates":[{}]}]}}`} {
		f.Add([]byte(s))
	}
}

func FuzzParseNodeMessage(f *testing.F) {
	addDocuments(f, nodeMessages())
	f.Fuzz(func(t *testing.T, b []byte) { comesBack(t, b, ParseNodeMessage) })
}

func FuzzParseServerMessage(f *testing.F) {
	addDocuments(f, serverMessages())
	f.Fuzz(func(t *testing.T, b []byte) {
		comesBack(t, b, ParseServerMessage)
		if m, err := ParseServerMessage(b); err == nil && m.Change != nil {
			(weft.NetworkMap{}).Apply(*m.Change)
		}
	})
}

// comesBack checks that what is said of what was read is read again, as the same.
func comesBack[M any](t *testing.T, b []byte, parse func([]byte) (M, error)) {
	m, err := parse(b)
	if err != nil {
		return
	}
	said, err := json.Marshal(m)
	if err != nil {
		t.Fatalf("%s is read and cannot be said: %v", b, err)
	}
	again, err := parse(said)
	if err != nil {
		t.Fatalf("%s is read, said as %s, and not read: %v", b, said, err)
	}
	if twice := must(json.Marshal(again)); !bytes.Equal(twice, said) {
		t.Fatalf("%s is said again as %s", said, twice)
	}
}
