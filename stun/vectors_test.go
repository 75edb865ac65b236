package stun

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex reads bytes as RFCs print them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The test vectors of RFC 5769, and that of RFC 8489, appendix B.1, as erratum
// 6268 corrects it: the printed one lacks PASSWORD-ALGORITHM and miscounts.
const (
	vectorRequest = `
		00 01 00 58 21 12 a4 42 b7 e7 a7 01 bc 34 d6 86 fa 87 df ae
		80 22 00 10 53 54 55 4e 20 74 65 73 74 20 63 6c 69 65 6e 74
		00 24 00 04 6e 00 01 ff
		80 29 00 08 93 2f f9 b1 51 26 3b 36
		00 06 00 09 65 76 74 6a 3a 68 36 76 59 20 20 20
		00 08 00 14 9a ea a7 0c bf d8 cb 56 78 1e f2 b5 b2 d3 f2 49 c1 b5 71 a2
		80 28 00 04 e5 7a 3b cf`
	vectorIPv4 = `
		01 01 00 3c 21 12 a4 42 b7 e7 a7 01 bc 34 d6 86 fa 87 df ae
		80 22 00 0b 74 65 73 74 20 76 65 63 74 6f 72 20
		00 20 00 08 00 01 a1 47 e1 12 a6 43
		00 08 00 14 2b 91 f5 99 fd 9e 90 c3 8c 74 89 f9 2a f9 ba 53 f0 6b e7 d7
		80 28 00 04 c0 7d 4c 96`
	vectorIPv6 = `
		01 01 00 48 21 12 a4 42 b7 e7 a7 01 bc 34 d6 86 fa 87 df ae
		80 22 00 0b 74 65 73 74 20 76 65 63 74 6f 72 20
		00 20 00 14 00 02 a1 47 01 13 a9 fa a5 d3 f1 79 bc 25 f4 b5 be d2 b9 d9
		00 08 00 14 a3 82 95 4e 4b e6 7b f1 17 84 c9 7c 82 92 c2 75 bf e3 ed 41
		80 28 00 04 c8 fb 0b 4c`
	vectorLongTerm = `
		00 01 00 60 21 12 a4 42 78 ad 34 33 c6 ad 72 c0 29 da 41 2e
		00 06 00 12 e3 83 9e e3 83 88 e3 83 aa e3 83 83 e3 82 af e3 82 b9 00 00
		00 15 00 1c 66 2f 2f 34 39 39 6b 39 35 34 64 36 4f 4c 33 34 6f 4c 39 46
		            53 54 76 79 36 34 73 41
		00 14 00 0b 65 78 61 6d 70 6c 65 2e 6f 72 67 00
		00 08 00 14 f6 70 24 65 6d d6 4a 3e 02 b8 e0 71 2e 85 c9 a2 8c a8 96 66`
	vectorSHA256 = `
		00 01 00 90 21 12 a4 42 78 ad 34 33 c6 ad 72 c0 29 da 41 2e
		00 1e 00 20 4a 3c f3 8f ef 69 92 bd a9 52 c6 78 04 17 da 0f
		            24 81 94 15 56 9e 60 b2 05 c4 6e 41 40 7f 17 04
		00 15 00 29 6f 62 4d 61 74 4a 6f 73 32 41 41 41 43 66 2f 2f 34 39 39 6b
		            39 35 34 64 36 4f 4c 33 34 6f 4c 39 46 53 54 76 79 36 34 73
		            41 00 00 00
		00 14 00 0b 65 78 61 6d 70 6c 65 2e 6f 72 67 00
		00 1d 00 04 00 02 00 00
		00 1c 00 20 b5 c7 bf 00 5b 6c 52 a2 1c 51 c5 e8 92 f8 19 24
		            13 62 96 cb 92 7c 43 14 93 09 27 8c c6 51 8e 65`

	vectorPassword = "VOkJxbRl1RmTxUk/WvJxBt"
	vectorUsername = "\u30DE\u30C8\u30EA\u30C3\u30AF\u30B9"
	vectorRealm    = "example.org"
	vectorSecret   = "TheMatrIX" // after OpaqueString
)

func mustParse(t testing.TB, b []byte) Message {
	t.Helper()
	m, err := Parse(b)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return m
}

func wantAttribute(t *testing.T, m *Message, a Attr, want string) {
	t.Helper()
	if v, ok := m.Attribute(a); !ok || string(v) != want {
		t.Errorf("attribute %#04x = %q, %v; want %q", a, v, ok, want)
	}
}

func TestTheSampleRequestOfRFC5769IsUnderstoodAndAuthentic(t *testing.T) {
	b := unhex(t, vectorRequest)
	m := mustParse(t, b)
	if m.Class != ClassRequest || m.Method != MethodBinding || m.ID.String() != "b7e7a701bc34d686fa87dfae" {
		t.Errorf("header: %v, %v, %v", m.Class, m.Method, m.ID)
	}
	if !m.hasFingerprint {
		t.Error("FINGERPRINT not seen")
	}
	if m.Software() != "STUN test client" {
		t.Errorf("Software() = %q", m.Software())
	}
	wantAttribute(t, &m, AttrUsername, "evtj:h6vY")
	if diff := cmp.Diff([]Attr{0x0024}, m.Unknown()); diff != "" { // PRIORITY, of ICE
		t.Errorf("Unknown() (-want +got):\n%s", diff)
	}
	if !m.VerifyIntegrity([]byte(vectorPassword)) {
		t.Error("MESSAGE-INTEGRITY rejected under its own password")
	}
	if m.VerifyIntegrity([]byte(vectorPassword + "x")) {
		t.Error("MESSAGE-INTEGRITY accepted under another password")
	}
	if m.VerifyIntegritySHA256([]byte(vectorPassword)) {
		t.Error("a MESSAGE-INTEGRITY-SHA256 that is not there was accepted")
	}
}

func TestTheSampleResponsesOfRFC5769TellTheMappedAddress(t *testing.T) {
	for name, tc := range map[string]struct{ vector, mapped string }{
		"IPv4": {vectorIPv4, "192.0.2.1:32853"},
		"IPv6": {vectorIPv6, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"},
	} {
		t.Run(name, func(t *testing.T) {
			m := mustParse(t, unhex(t, tc.vector))
			if m.Class != ClassSuccess || m.Method != MethodBinding {
				t.Errorf("header: %v, %v", m.Class, m.Method)
			}
			if m.Mapped != netip.MustParseAddrPort(tc.mapped) {
				t.Errorf("Mapped = %v, want %v", m.Mapped, tc.mapped)
			}
			if m.Software() != "test vector" {
				t.Errorf("Software() = %q", m.Software())
			}
			if !m.VerifyIntegrity([]byte(vectorPassword)) {
				t.Error("MESSAGE-INTEGRITY rejected")
			}
			if !m.hasFingerprint {
				t.Error("FINGERPRINT not seen")
			}
		})
	}
}

func TestTheLongTermRequestOfRFC5769IsAuthentic(t *testing.T) {
	m := mustParse(t, unhex(t, vectorLongTerm))
	wantAttribute(t, &m, AttrUsername, vectorUsername)
	wantAttribute(t, &m, AttrRealm, vectorRealm)
	wantAttribute(t, &m, AttrNonce, "f//499k954d6OL34oL9FSTvy64sA")
	if !m.VerifyIntegrity(LongTermKey(vectorUsername, vectorRealm, vectorSecret)) {
		t.Error("MESSAGE-INTEGRITY rejected")
	}
	if m.VerifyIntegrity(LongTermKey(vectorUsername, vectorRealm, "TheMatrix")) {
		t.Error("MESSAGE-INTEGRITY accepted under another password")
	}
}

// sha256Key is the key under password algorithm SHA-256 (RFC 8489, 18.5.1.2).
func sha256Key() []byte {
	sum := sha256.Sum256([]byte(vectorUsername + ":" + vectorRealm + ":" + vectorSecret))
	return sum[:]
}

func TestTheSHA256RequestOfRFC8489IsAuthentic(t *testing.T) {
	m := mustParse(t, unhex(t, vectorSHA256))
	hash := sha256.Sum256([]byte(vectorUsername + ":" + vectorRealm))
	wantAttribute(t, &m, AttrUserhash, string(hash[:]))
	wantAttribute(t, &m, AttrNonce, "obMatJos2AAACf//499k954d6OL34oL9FSTvy64sA")
	wantAttribute(t, &m, AttrPasswordAlgorithm, "\x00\x02\x00\x00") // SHA-256
	key := sha256Key()
	if !m.VerifyIntegritySHA256(key) {
		t.Error("MESSAGE-INTEGRITY-SHA256 rejected")
	}
	if m.VerifyIntegrity(key) {
		t.Error("a MESSAGE-INTEGRITY that is not there was accepted")
	}
}

// The vectors pad with spaces where we pad with zeros, so they are not rebuilt
// whole: what we append to their beginning must be their end.
func TestWhatWeAppendToAVectorIsTheVectorsOwnEnd(t *testing.T) {
	const sha1Len, sha256Len, crcLen = 24, 36, 8
	long := LongTermKey(vectorUsername, vectorRealm, vectorSecret)
	for name, tc := range map[string]struct {
		vector string
		cut    int
		remake func(b []byte) []byte
	}{
		"request": {vectorRequest, sha1Len + crcLen, func(b []byte) []byte {
			return AppendFingerprint(AppendIntegrity(b, []byte(vectorPassword)))
		}},
		"IPv4": {vectorIPv4, sha1Len + crcLen, func(b []byte) []byte {
			return AppendFingerprint(AppendIntegrity(b, []byte(vectorPassword)))
		}},
		"IPv6": {vectorIPv6, sha1Len + crcLen, func(b []byte) []byte {
			return AppendFingerprint(AppendIntegrity(b, []byte(vectorPassword)))
		}},
		"long-term": {vectorLongTerm, sha1Len, func(b []byte) []byte { return AppendIntegrity(b, long) }},
		"SHA-256":   {vectorSHA256, sha256Len, func(b []byte) []byte { return AppendIntegritySHA256(b, sha256Key()) }},
	} {
		t.Run(name, func(t *testing.T) {
			want := unhex(t, tc.vector)
			got := tc.remake(unhex(t, tc.vector)[:len(want)-tc.cut])
			if diff := cmp.Diff(hex.Dump(want), hex.Dump(got)); diff != "" {
				t.Errorf("(-vector +ours):\n%s", diff)
			}
		})
	}
}

func TestADamagedVectorIsNoticed(t *testing.T) {
	whole := unhex(t, vectorIPv4)
	for i := range whole {
		for bit := range 8 {
			b := append([]byte(nil), whole...)
			b[i] ^= 1 << bit
			if m, err := Parse(b); err == nil && m.hasFingerprint {
				t.Errorf("byte %d, bit %d flipped: accepted", i, bit)
			}
		}
	}
}
