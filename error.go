package weft

import "errors"

// A Code is what kind of failure an [Error] is: stable, for programs.
type Code string

// The codes that the server, a relay and the daemon answer with.
const (
	CodeBadToken     Code = "bad-token"     // no such join key, or it is mistyped
	CodeSpentToken   Code = "spent-token"   // a one-off key that another machine has used
	CodeExpiredToken Code = "expired-token" // past its expiry
	CodeExpiredNode  Code = "expired-node"  // the node's membership is past its end
	CodeSignIn       Code = "sign-in"       // somebody has to sign in for the machine
	CodeWaiting      Code = "waiting"       // for an administrator's approval
	CodeDisabled     Code = "disabled"      // the node, or its user, by an administrator
	CodeRemoved      Code = "removed"       // the node was deleted on the server
	CodeWrongServer  Code = "wrong-server"  // the server holds another key than the one pinned
	CodeNameTaken    Code = "name-taken"
	CodeConflict     Code = "conflict"      // somebody else changed it meanwhile
	CodeAddressTaken Code = "address-taken" // of a network of two words: another machine has it
	CodeWrongSecret  Code = "wrong-secret"  // the network of that name has another
	CodeExhausted    Code = "exhausted"     // no address left in the overlay's range
	CodeBadRequest   Code = "bad-request"
	CodeNotFound     Code = "not-found"
	CodeDenied       Code = "denied"
	CodeUnavailable  Code = "unavailable" // try again later
	CodeInternal     Code = "internal"
)

// An Error is a failure that reaches a person: one sentence that says what happened and what to do, and a code.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is(err, &Error{Code: c}) true for any error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// CodeOf returns the code of the first Error in err's chain, and "" where there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Permanent reports that trying again with the same credentials cannot help.
func (c Code) Permanent() bool {
	switch c {
	case CodeBadToken, CodeSpentToken, CodeExpiredToken, CodeRemoved, CodeDenied, CodeBadRequest,
		CodeAddressTaken, CodeWrongSecret:
		return true
	}
	return false
}

// Held reports that the server knows the node and keeps its stream open, but has it in no map until that changes on the
// server.
func (c Code) Held() bool { return c == CodeExpiredNode || c == CodeWaiting || c == CodeDisabled }
