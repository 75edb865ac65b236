package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/key"
)

func readDoc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", "wire.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// examples are the JSON documents of docs/wire.md, by their one field.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(readDoc(t), -1) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(m[1]), &fields); err != nil || len(fields) != 1 {
			t.Errorf("%v: %s", err, m[1])
		}
		for name := range fields {
			all[name] = append(all[name], m[1]...)
		}
	}
	return all
}

// TestTheDocumentShowsWhatIsSaid fails when docs/wire.md shows a field that there is not, or misses one that there is.
func TestTheDocumentShowsWhatIsSaid(t *testing.T) {
	shown := examples(t)
	check(t, shown, ParseNodeMessage)
	check(t, shown, ParseServerMessage)
	check(t, shown, ParseMemberMessage)
	check(t, shown, ParseRendezvousMessage)
	for name := range shown {
		t.Errorf("%q is said by nobody", name)
	}

	doc := readDoc(t)
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || !strings.HasPrefix(typ.PkgPath(), "weft") ||
			reflect.PointerTo(typ).Implements(reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()) ||
			reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !strings.Contains(doc, strconv.Quote(name)+":") {
				t.Errorf("docs/wire.md does not show %q of %s", name, typ)
			}
			look(f.Type)
		}
	}
	look(reflect.TypeFor[NodeMessage]())
	look(reflect.TypeFor[ServerMessage]())
	look(reflect.TypeFor[MemberMessage]())
	look(reflect.TypeFor[RendezvousMessage]())
	look(reflect.TypeFor[Record]())
	if !seen[reflect.TypeFor[weft.Candidate]()] {
		t.Error("this test does not look at everything")
	}
}

// check parses the examples of one side, without fields that nobody knows, and takes them out of shown.
func check[M any](t *testing.T, shown map[string][]byte, parse func([]byte) (M, error)) {
	t.Helper()
	typ := reflect.TypeFor[M]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		text, ok := shown[name]
		if !ok {
			t.Errorf("docs/wire.md has no example of %q", name)
			continue
		}
		delete(shown, name)
		for dec := json.NewDecoder(bytes.NewReader(text)); dec.More(); {
			var raw json.RawMessage
			var strict M
			if err := dec.Decode(&raw); err != nil {
				t.Fatal(err)
			}
			known := json.NewDecoder(bytes.NewReader(raw))
			known.DisallowUnknownFields()
			if err := known.Decode(&strict); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			got, err := parse(raw)
			if diff := cmp.Diff(strict, got, sameValues); err != nil || diff != "" {
				t.Errorf("%s: %v: %s", raw, err, diff)
			}
		}
	}
}

func TestTheDocumentKnowsTheKindsAndLengths(t *testing.T) {
	doc := readDoc(t)
	rows := []string{
		fmt.Sprintf("| %d | Peer |", KindPeer), fmt.Sprintf("| %d | Data |", KindData), fmt.Sprintf("| %d | Bind |", KindBind),
		fmt.Sprintf("| %d | Challenge |", KindChallenge), fmt.Sprintf("| %d | Bound |", KindBound),
		fmt.Sprintf("| %d | Refused |", KindRefused), fmt.Sprintf("| %d | Locate |", KindLocate),
		fmt.Sprintf("| %d | Located |", KindLocated), fmt.Sprintf("| %d | Probe |", KindProbe), fmt.Sprintf("| %d | Probed |", KindProbed),
		fmt.Sprintf("**Locate** and **Located** (%d bytes each)", LocateSize), fmt.Sprintf("**Probe** (%d bytes)", ProbeSize),
		fmt.Sprintf("**Probed** (%d bytes)", ProbedSize), fmt.Sprintf("| Locate | %d |", LocateSize), fmt.Sprintf("| Located | %d |", LocateSize),
		fmt.Sprintf("| Probe | %d |", ProbeSize), fmt.Sprintf("| Probed | %d |", ProbedSize), fmt.Sprintf("| STUN for a Probe | at most %d |", ProbePacket),
		fmt.Sprintf("| %d | Hello | relay, first | nonce (%d)", StreamHello, StreamNonceSize),
		fmt.Sprintf("| %d | Bind | node, second | ticket (%d), proof (%d)", StreamBind, TicketSize, key.Overhead),
		fmt.Sprintf("| %d | Bound | relay |", StreamBound), fmt.Sprintf("| %d | Refused | relay |", StreamRefused),
		fmt.Sprintf("| %d | Data | both |", StreamData), fmt.Sprintf("| %d | Ping | both |", StreamPing),
		fmt.Sprintf("| %d | Pong | both |", StreamPong),
		fmt.Sprintf("| %d | Hello | who connects |", KindHello), fmt.Sprintf("| %d | Welcome | who listens |", KindWelcome),
		fmt.Sprintf("| %d | Confirm | who connects |", KindConfirm), fmt.Sprintf("of %d bytes each", GreetingSize),
		"`" + ControlPath + "`", "`" + RelayPath + "`", "`" + ControlProto + "`", "`" + RelayProto + "`",
		"`" + peerPurpose + "`", "`" + relayPurpose + "`", strconv.Quote(strings.TrimSuffix(ticketContext, "\x00")) + " 00`",
		fmt.Sprintf("(at most %d)", MaxCandidates), fmt.Sprintf("(at most %d)", MaxReports), "`" + TokenPrefix + "`",
		fmt.Sprintf("at most %d KiB", MaxNodeMessage>>10), fmt.Sprintf("%d MiB", MaxServerMessage>>20),
		fmt.Sprintf("**Bind** (%d bytes)", bindSize), fmt.Sprintf("**Challenge** (%d bytes)", len(AppendChallenge(nil, Challenge{}))),
		fmt.Sprintf("**Bound** (%d bytes)", len(AppendBound(nil, Bound{}, boxRA))),
		fmt.Sprintf("**Refused** (%d bytes)", len(AppendRefused(nil, [8]byte{}, 1))),
		fmt.Sprintf("| Bind | %d |", bindSize), "| Challenge | 28 |", "| Refused | 16 |", "| Bound | 62 |", // as is tested above
		"| Ping | 48,", "| Pong | 66 |", "| Candidates | 64, and 22 each: at most 768 |", "| Report | 40, and 20 each: at most 360 |",
		"| Attempt | 60, and 2 each: at most 188 |", fmt.Sprintf("(at most %d)", MaxAttemptPorts),
		"| Links | 48, and 8 each: at most 176 |", "| Uplinks | 48, and 4 each: at most 176 |", "| Portal | 76, and 16 each: at most 124 |", fmt.Sprintf("(at most %d)", MaxLinks),
		fmt.Sprintf("| Data | %d,", DataPrefix), fmt.Sprintf("| stream Data | %d,", StreamDataPrefix),
		"`" + RendezvousPath + "`", "`" + RendezvousProto + "`", strconv.Quote(strings.TrimSuffix(enterContext, "\x00")) + " 00`",
		strconv.Quote(strings.TrimSuffix(recordContext, "\x00")) + " 00`", strconv.Quote(strings.TrimSuffix(nameContext, "\x00")) + " 00`",
		fmt.Sprintf("at most %d KiB sealed", MaxSealed>>10), fmt.Sprintf("%d KiB of a member", MaxMemberMessage>>10),
		fmt.Sprintf("%d MiB of the rendezvous", MaxRendezvousMessage>>20),
		"at most " + strconv.Itoa(maxWord) + " bytes without control characters",
	}
	for _, row := range rows {
		if !strings.Contains(doc, row) {
			t.Errorf("docs/wire.md does not say %s", row)
		}
	}
	text := regexp.MustCompile(`(?m)^    (weft1_\S+)$`).FindStringSubmatch(doc)
	if text == nil {
		t.Fatal("docs/wire.md shows no token")
	}
	got, err := ParseToken(text[1])
	if diff := cmp.Diff(fixedToken(), got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}
