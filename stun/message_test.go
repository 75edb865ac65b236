package stun

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var testID = TransactionID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}

// message makes a message with a cookie of raw attributes, for tests of what no
// builder of ours would make.
func message(t testing.TB, typ uint16, attributes string) []byte {
	t.Helper()
	body := unhex(t, attributes)
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	b = binary.BigEndian.AppendUint32(b, cookie)
	return append(append(b, testID[:]...), body...)
}

func TestARequestIsTheseBytes(t *testing.T) {
	const header = "2112a442 0102030405060708090a0b0c"
	for name, tc := range map[string]struct {
		request Request
		want    string
	}{
		"bare":          {Request{}, "0001 0000" + header},
		"change both":   {Request{Change: ChangeIP | ChangePort}, "0001 0008" + header + "0003 0004 00000006"},
		"change port":   {Request{Change: ChangePort}, "0001 0008" + header + "0003 0004 00000002"},
		"response port": {Request{ResponsePort: 4660}, "0001 0008" + header + "0027 0004 1234 0000"},
		"padding":       {Request{Padding: 5}, "0001 000c" + header + "0026 0008 0000000000000000"},
		"software":      {Request{Software: "weft"}, "0001 0008" + header + "8022 0004 77656674"},
		"odd software":  {Request{Software: "wefty"}, "0001 000c" + header + "8022 0005 7765667479 000000"},
		"fingerprint":   {Request{Fingerprint: true}, "0001 0008" + header + "8028 0004 5b20f9cc"},
	} {
		t.Run(name, func(t *testing.T) {
			want := append([]byte("before"), unhex(t, tc.want)...)
			got := AppendBindingRequest([]byte("before"), testID, tc.request)
			if diff := cmp.Diff(hex.Dump(want), hex.Dump(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if m := mustParse(t, got[len("before"):]); len(m.Unknown()) != 0 {
				t.Errorf("our own request has attributes unknown to us: %v", m.Unknown())
			}
		})
	}
}

func TestARequestSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Request{
			Software:     rapid.StringN(0, 40, 120).Draw(t, "software"),
			Change:       Change(rapid.SampledFrom([]int{0, 2, 4, 6}).Draw(t, "change")),
			Padding:      rapid.IntRange(0, 20_000).Draw(t, "padding") * 4,
			ResponsePort: rapid.Uint16().Draw(t, "port"),
			Fingerprint:  rapid.Bool().Draw(t, "fingerprint"),
		}
		id := TransactionID(rapid.SliceOfN(rapid.Byte(), 12, 12).Draw(t, "id"))
		b := AppendBindingRequest(nil, id, want)
		if !Is(b) {
			t.Fatal("Is does not know our own request")
		}
		m, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		want.Padding = min(want.Padding, MaxPadding)
		got := Request{m.Software(), m.Change, m.Padding, m.ResponsePort, m.hasFingerprint}
		if got != want || m.ID != id || m.Class != ClassRequest || m.Method != MethodBinding {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestATypeIsMadeOfClassAndMethodAndComesApartAgain(t *testing.T) {
	for typ := range uint16(1 << 14) {
		c, m := splitType(typ)
		if got := messageType(c, m); got != typ {
			t.Fatalf("%#04x came back as %#04x", typ, got)
		}
	}
	for want, got := range map[uint16]uint16{
		0x0001: messageType(ClassRequest, MethodBinding),
		0x0011: messageType(ClassIndication, MethodBinding),
		0x0101: messageType(ClassSuccess, MethodBinding),
		0x0111: messageType(ClassError, MethodBinding),
	} {
		if got != want {
			t.Errorf("%#04x, want %#04x", got, want)
		}
	}
}

func TestOnlySTUNLooksLikeSTUN(t *testing.T) {
	request := AppendBindingRequest(nil, testID, Request{})
	with := func(i int, v byte) []byte {
		b := bytes.Clone(request)
		b[i] = v
		return b
	}
	classic := with(4, 0)
	wireguard := make([]byte, 148) // a handshake initiation
	wireguard[0] = 1
	for name, tc := range map[string]struct {
		b           []byte
		is, classic bool
	}{
		"a request":                {request, true, false},
		"an RFC 3489 request":      {classic, false, true},
		"an RFC 3489 response":     {append([]byte{1, 1}, classic[2:]...), false, false},
		"nothing":                  {nil, false, false},
		"one byte":                 {[]byte{0}, false, false},
		"a short header":           {request[:19], false, false},
		"a byte too many":          {append(bytes.Clone(request), 0), false, false},
		"a word too many":          {append(bytes.Clone(request), 0, 0, 0, 0), false, false},
		"a length beyond the end":  {with(3, 4), false, false},
		"an odd length":            {append(with(3, 2), 0, 0), false, false},
		"a wrong first bit":        {with(0, 0x80), false, false},
		"a wrong second bit":       {with(0, 0x40), false, false},
		"a wrong cookie":           {with(7, 0x43), false, true},
		"a WireGuard handshake":    {wireguard, false, false},
		"a WireGuard cookie reply": {append([]byte{3}, make([]byte, 63)...), false, false},
		"a WireGuard keepalive":    {append([]byte{4}, make([]byte, 31)...), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if Is(tc.b) != tc.is || IsClassic(tc.b) != tc.classic {
				t.Errorf("Is = %v, IsClassic = %v; want %v, %v", Is(tc.b), IsClassic(tc.b), tc.is, tc.classic)
			}
			if _, err := Parse(tc.b); (err == nil) != tc.is {
				t.Errorf("Parse: %v", err)
			}
		})
	}
}

func TestBrokenAttributesAreRefusedAndNothingPanics(t *testing.T) {
	for name, tc := range map[string]struct {
		attributes string
		want       error
	}{
		"zero-length XOR-MAPPED-ADDRESS":  {"0020 0000", ErrMalformed},
		"zero-length MAPPED-ADDRESS":      {"0001 0000", ErrMalformed},
		"IPv6 in the space of IPv4":       {"0020 0008 0002 0000 00000000", ErrMalformed},
		"IPv4 in the space of IPv6":       {"0020 0014 0001 0000 00000000 00000000 00000000 00000000", ErrMalformed},
		"an unknown family":               {"0020 0008 0003 0000 00000000", ErrMalformed},
		"zero-length CHANGE-REQUEST":      {"0003 0000", ErrMalformed},
		"zero-length RESPONSE-PORT":       {"0027 0000", ErrMalformed},
		"zero-length ERROR-CODE":          {"0009 0000", ErrMalformed},
		"ERROR-CODE of class 0":           {"0009 0004 00000000", ErrMalformed},
		"ERROR-CODE number 100":           {"0009 0004 00000464", ErrMalformed},
		"odd UNKNOWN-ATTRIBUTES":          {"000a 0003 00010200", ErrMalformed},
		"zero-length MESSAGE-INTEGRITY":   {"0008 0000", ErrMalformed},
		"short MESSAGE-INTEGRITY":         {"0008 0010 00000000 00000000 00000000 00000000", ErrMalformed},
		"zero-length MI-SHA256":           {"001c 0000", ErrMalformed},
		"truncated MI-SHA256":             {"001c 0010 00000000 00000000 00000000 00000000", ErrMalformed},
		"zero-length FINGERPRINT":         {"8028 0000", ErrMalformed},
		"a wrong FINGERPRINT":             {"8028 0004 00000000", ErrFingerprint},
		"an attribute beyond the end":     {"8022 0005 61626364", ErrMalformed},
		"padding beyond the end":          {"8022 0001", ErrMalformed},
		"the longest length":              {"8022 ffff 61626364", ErrMalformed},
		"zero-length SOFTWARE":            {"8022 0000", nil},
		"zero-length PADDING":             {"0026 0000", nil},
		"zero-length UNKNOWN-ATTRIBUTES":  {"000a 0000", nil},
		"zero-length OTHER-ADDRESS":       {"802c 0000", nil}, // may be skipped
		"RESPONSE-ORIGIN of no family":    {"802b 0008 0009 0000 00000000", nil},
		"zero-length unknown, to know":    {"7fff 0000", nil},
		"zero-length unknown, to skip":    {"ffff 0000", nil},
		"zero-length USERNAME and others": {"0006 0000 0014 0000 0015 0000 001d 0000 001e 0000", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, typ := range []uint16{0x0001, 0x0101, 0x0111} {
				b := message(t, typ, tc.attributes)
				m, err := Parse(b)
				if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("Parse: %v, want %v", err, tc.want)
				}
				useAll(&m)
			}
		})
	}
}

// useAll calls everything there is to call on a message: nothing may panic.
func useAll(m *Message) {
	m.Software()
	m.Reason()
	m.Unknown()
	m.UnknownAttributes()
	m.VerifyIntegrity(nil)
	m.VerifyIntegritySHA256(nil)
	m.Attribute(AttrFingerprint)
	m.Attribute(0)
}

func TestAResponseIsReadInEveryDialect(t *testing.T) {
	type answers struct {
		Mapped, Origin, Other netip.AddrPort
		Code                  int
	}
	ap := netip.MustParseAddrPort
	const (
		plain1 = "0001 0008 0001 1000 01020304"
		xor2   = "0020 0008 0001 3112 2010a646" // 1.2.2.4:4096 under the cookie
	)
	for name, tc := range map[string]struct {
		attributes string
		want       answers
	}{
		"XOR-MAPPED-ADDRESS":         {xor2, answers{Mapped: ap("1.2.2.4:4096")}},
		"MAPPED-ADDRESS alone":       {plain1, answers{Mapped: ap("1.2.3.4:4096")}},
		"MAPPED-ADDRESS first":       {plain1 + xor2, answers{Mapped: ap("1.2.2.4:4096")}},
		"MAPPED-ADDRESS last":        {xor2 + plain1, answers{Mapped: ap("1.2.2.4:4096")}},
		"two of a kind":              {"0001 0008 0001 0001 01010101" + "0001 0008 0001 0002 02020202", answers{Mapped: ap("1.1.1.1:1")}},
		"RFC 3489's names":           {plain1 + "0004 0008 0001 0001 01010101 0005 0008 0001 0002 02020202", answers{Mapped: ap("1.2.3.4:4096"), Origin: ap("1.1.1.1:1"), Other: ap("2.2.2.2:2")}},
		"RFC 5780's names win":       {"0004 0008 0001 0001 01010101 802b 0008 0001 0003 03030303 0005 0008 0001 0002 02020202 802c 0008 0001 0004 04040404", answers{Origin: ap("3.3.3.3:3"), Other: ap("4.4.4.4:4")}},
		"IPv4 written as IPv6":       {"0001 0014 0002 0001 00000000 00000000 0000ffff 01020304", answers{Mapped: ap("1.2.3.4:1")}},
		"an error":                   {"0009 0007 0000 0426 4e6f 2100", answers{Code: 438}},
		"reserved bits in the error": {"0009 0004 ffff fc00", answers{Code: 400}},
	} {
		t.Run(name, func(t *testing.T) {
			m := mustParse(t, message(t, 0x0101, tc.attributes))
			got := answers{m.Mapped, m.Origin, m.Other, m.Code}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAnErrorTellsItsReasonAndWhatWasNotUnderstood(t *testing.T) {
	m := mustParse(t, message(t, 0x0111, "0009 0008 0000 0414 6e6f7065 000a 0006 0003 7ffe 0002 0000"))
	if m.Code != 420 || m.Reason() != "nope" {
		t.Errorf("Code, Reason = %d, %q", m.Code, m.Reason())
	}
	if diff := cmp.Diff([]Attr{3, 0x7ffe, 2}, m.UnknownAttributes()); diff != "" {
		t.Errorf("UnknownAttributes (-want +got):\n%s", diff)
	}
}

func TestUnknownAttributesAreRememberedUpToALimit(t *testing.T) {
	m := mustParse(t, message(t, 0x0001, "7f01 0000 ff02 0000 7f03 0004 00000000"))
	if diff := cmp.Diff([]Attr{0x7f01, 0x7f03}, m.Unknown()); diff != "" {
		t.Errorf("Unknown (-want +got):\n%s", diff)
	}
	m = mustParse(t, message(t, 0x0001, strings.Repeat("7f01 0000", 1000)))
	if len(m.Unknown()) != maxUnknown {
		t.Errorf("%d remembered, want %d", len(m.Unknown()), maxUnknown)
	}
}

func TestWhatFollowsTheIntegrityIsIgnored(t *testing.T) {
	key := []byte("k")
	forged := unhex(t, "0020 0008 0001 3112 2010a646 0003 0004 00000006 7f01 0000 8022 0004 65766965")
	lengthen := func(b []byte) []byte {
		b = append(b, forged...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)-headerLen))
		return b
	}
	for name, b := range map[string][]byte{
		"SHA-1":      lengthen(AppendIntegrity(message(t, 0x0101, ""), key)),
		"SHA-256":    lengthen(AppendIntegritySHA256(message(t, 0x0101, ""), key)),
		"both":       lengthen(AppendIntegritySHA256(AppendIntegrity(message(t, 0x0101, ""), key), key)),
		"and sealed": AppendFingerprint(lengthen(AppendIntegrity(message(t, 0x0101, ""), key))),
	} {
		t.Run(name, func(t *testing.T) {
			m := mustParse(t, b)
			if m.Mapped.IsValid() || m.Change != 0 || len(m.Unknown()) != 0 || m.Software() != "" {
				t.Errorf("an attribute behind the integrity counted: %+v", m)
			}
			if !m.VerifyIntegrity(key) && !m.VerifyIntegritySHA256(key) {
				t.Error("the integrity no longer holds")
			}
		})
	}
	both := mustParse(t, AppendIntegritySHA256(AppendIntegrity(message(t, 0x0101, ""), key), key))
	if !both.VerifyIntegrity(key) || !both.VerifyIntegritySHA256(key) {
		t.Error("a message with both kinds of integrity must satisfy both")
	}
}

func TestNothingMayFollowTheFingerprint(t *testing.T) {
	b := message(t, 0x0101, "8028 0004 00000000 8022 0000")
	binary.BigEndian.PutUint32(b[headerLen+4:], fingerprint(b[:headerLen]))
	if _, err := Parse(b); !errors.Is(err, ErrMalformed) {
		t.Errorf("Parse: %v", err)
	}
}

func TestALongSoftwareIsCutBetweenCharacters(t *testing.T) {
	m := mustParse(t, AppendBindingRequest(nil, testID, Request{Software: strings.Repeat("é", 300)}))
	if got := m.Software(); got != strings.Repeat("é", 254) {
		t.Errorf("%d bytes, ends %q", len(got), got[len(got)-3:])
	}
}

func TestTransactionIDsDiffer(t *testing.T) {
	seen := map[TransactionID]bool{}
	for range 1000 {
		seen[NewTransactionID()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different IDs of 1000", len(seen))
	}
}
