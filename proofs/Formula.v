(* Formula.v - the integer formulas of schedules, and the C that computes them.

   A formula is what lua/expr.lua builds: a tree whose nodes carry the largest value that the
   schedule language expects of them. The node's C type is chosen by that number: u32 below 2^32,
   else u64. Here a formula has two readings,

     eval      the number: what the theorems of Partition.v speak of
     c_value   what C's unsigned arithmetic makes of it: every operation is done modulo 2^32 or
               2^64, every narrowing cast modulo 2^32, as lua/expr.lua prints them

   and they agree where the formula fits its bounds. `check` decides most of that by intervals;
   what is left (differences that are not negative, claims, divisors that are not 0) are the
   obligations of a formula, which an instance proves from its partition. *)

Require Import ZArith List Lia Bool.
Import ListNotations.
Open Scope Z_scope.

Inductive formula :=
  | Const (value : Z)
  | Name (place : nat) (least most : Z)  (* the variable at that place of the environment *)
  | Add (a b : formula) (most : Z)
  | Sub (a b : formula) (most : Z)
  | Mul (a b : formula) (most : Z)
  | Div (a b : formula) (most : Z)
  | Mod (a b : formula) (most : Z)
  | Min (a b : formula) (most : Z)
  | Max (a b : formula) (most : Z)
  | Monus (a b : formula) (most : Z)     (* max(0, a - b) *)
  | Claim (a : formula) (most : Z).      (* the same number, and a smaller bound *)

Definition environment := list Z.
Definition value_of (env : environment) (place : nat) : Z := nth place env 0.

Fixpoint eval (env : environment) (f : formula) : Z :=
  match f with
  | Const value => value
  | Name place _ _ => value_of env place
  | Add a b _ => eval env a + eval env b
  | Sub a b _ => eval env a - eval env b
  | Mul a b _ => eval env a * eval env b
  | Div a b _ => eval env a / eval env b
  | Mod a b _ => eval env a mod eval env b
  | Min a b _ => Z.min (eval env a) (eval env b)
  | Max a b _ => Z.max (eval env a) (eval env b)
  | Monus a b _ => Z.max 0 (eval env a - eval env b)
  | Claim a _ => eval env a
  end.

Definition most (f : formula) : Z :=
  match f with
  | Const value => value
  | Name _ _ high | Add _ _ high | Sub _ _ high | Mul _ _ high | Div _ _ high | Mod _ _ high
  | Min _ _ high | Max _ _ high | Monus _ _ high | Claim _ high => high
  end.

(* ---- C *)

Definition modulus (high : Z) : Z := if high <? 2 ^ 32 then 2 ^ 32 else 2 ^ 64.

(* An operation is done in 64 bits when its result or an operand needs them, and its result is
   cast to 32 when those are enough. *)
Definition wrapped (a b : formula) (high value : Z) : Z :=
  (value mod modulus (Z.max high (Z.max (most a) (most b)))) mod modulus high.

Fixpoint c_value (env : environment) (f : formula) : Z :=
  match f with
  | Const value => value
  | Name place _ _ => value_of env place
  | Add a b high => wrapped a b high (c_value env a + c_value env b)
  | Sub a b high => wrapped a b high (c_value env a - c_value env b)
  | Mul a b high => wrapped a b high (c_value env a * c_value env b)
  | Div a b high => wrapped a b high (c_value env a / c_value env b)
  | Mod a b high => wrapped a b high (c_value env a mod c_value env b)
  | Min a b high =>
      wrapped a b high (if c_value env a <? c_value env b then c_value env a else c_value env b)
  | Max a b high =>
      wrapped a b high (if c_value env a >? c_value env b then c_value env a else c_value env b)
  | Monus a b high =>
      wrapped a b high (if c_value env a >? c_value env b then c_value env a - c_value env b else 0)
  | Claim a high => c_value env a mod modulus high
  end.

(* Every node's value lies between 0 and the bound by which its type was chosen. *)
Fixpoint fits (env : environment) (f : formula) : Prop :=
  match f with
  | Const _ | Name _ _ _ => True
  | Add a b _ | Sub a b _ | Mul a b _ | Min a b _ | Max a b _ | Monus a b _ =>
      fits env a /\ fits env b
  | Div a b _ | Mod a b _ => fits env a /\ fits env b /\ 1 <= eval env b
  | Claim a _ => fits env a
  end /\ 0 <= eval env f <= most f /\ most f < 2 ^ 63.

Lemma modulus_above : forall high value, 0 <= value <= high -> high < 2 ^ 63 ->
  value mod modulus high = value.
Proof.
  intros high value range small. apply Z.mod_small. unfold modulus.
  destruct (Z.ltb_spec high (2 ^ 32)); lia.
Qed.

Lemma fits_range : forall env f, fits env f -> 0 <= eval env f <= most f /\ most f < 2 ^ 63.
Proof. intros env f; destruct f; simpl; tauto. Qed.

Lemma wrapped_exact : forall a b high value, 0 <= value <= high -> high < 2 ^ 63 ->
  most a < 2 ^ 63 -> most b < 2 ^ 63 -> wrapped a b high value = value.
Proof.
  intros a b high value range small small_a small_b. unfold wrapped.
  rewrite (modulus_above (Z.max high (Z.max (most a) (most b))) value) by lia.
  apply modulus_above; lia.
Qed.

(* Law c_exact: the C text of a formula that fits its bounds computes the very number: nothing
   wraps, no cast loses a bit.
   Mirrors: gemm_m16_wpart. *)
Theorem c_exact : forall env f, fits env f -> c_value env f = eval env f.
Proof.
  intros env. induction f; intro fit; pose proof (fits_range _ _ fit) as [range small];
    simpl in fit, range, small |- *; try reflexivity;
    repeat match goal with
    | fitted : _ /\ _ |- _ => destruct fitted
    end;
    repeat match goal with
    | fitted : fits env ?g, same : fits env ?g -> _ |- _ =>
        pose proof (fits_range _ _ fitted); specialize (same fitted)
    end;
    repeat match goal with
    | same : c_value env ?g = eval env ?g |- _ => rewrite same; clear same
    end;
    try (apply wrapped_exact; lia).
  - replace (if eval env f1 <? eval env f2 then eval env f1 else eval env f2)
      with (Z.min (eval env f1) (eval env f2)).
    + apply wrapped_exact; lia.
    + destruct (Z.ltb_spec (eval env f1) (eval env f2)); lia.
  - replace (if eval env f1 >? eval env f2 then eval env f1 else eval env f2)
      with (Z.max (eval env f1) (eval env f2)).
    + apply wrapped_exact; lia.
    + rewrite Z.gtb_ltb. destruct (Z.ltb_spec (eval env f2) (eval env f1)); lia.
  - replace (if eval env f1 >? eval env f2 then eval env f1 - eval env f2 else 0)
      with (Z.max 0 (eval env f1 - eval env f2)).
    + apply wrapped_exact; lia.
    + rewrite Z.gtb_ltb. destruct (Z.ltb_spec (eval env f2) (eval env f1)); lia.
  - apply modulus_above; lia.
Qed.

Example c_exact_used := c_exact [5] (Mul (Name 0 0 7) (Const 1000000000) 7000000000)
  ltac:(cbn; lia).
(* With a bound that is too small the product is done in 32 bits, and wraps. *)
Example c_exact_bound_needed :
  c_value [5] (Mul (Name 0 0 7) (Const 1000000000) 4000000000) <> 5 * 1000000000.
Proof. discriminate. Qed.

(* ---- deciding it *)

(* A lower bound of every value. *)
Fixpoint least (f : formula) : Z :=
  match f with
  | Const value => value
  | Name _ low _ => low
  | Add a b _ => least a + least b
  | Sub a b _ | Monus a b _ => Z.max 0 (least a - most b)
  | Mul a b _ => least a * least b
  | Div a b _ | Mod a b _ => 0
  | Min a b _ => Z.min (least a) (least b)
  | Max a b _ => Z.max (least a) (least b)
  | Claim a _ => least a
  end.

(* The bounds of all nodes follow from those below them, but for obligations. *)
Fixpoint check (f : formula) : bool :=
  match f with
  | Const value => 0 <=? value
  | Name _ low high => (0 <=? low) && (low <=? high)
  | Add a b high => check a && check b && (most a + most b <=? high)
  | Sub a b high | Monus a b high =>
      check a && check b && (0 <=? high) && (most a - least b <=? high)
  | Mul a b high => check a && check b && (most a * most b <=? high)
  | Div a b high => check a && check b && (most a / Z.max 1 (least b) <=? high)
  | Mod a b high => check a && check b && (Z.min (most a) (Z.max 1 (most b) - 1) <=? high)
  | Min a b high => check a && check b && (Z.min (most a) (most b) <=? high)
  | Max a b high => check a && check b && (Z.max (most a) (most b) <=? high)
  | Claim a high => check a
  end && (most f <? 2 ^ 63).

Fixpoint obligations (env : environment) (f : formula) : Prop :=
  match f with
  | Const _ => True
  | Name place low high => low <= value_of env place <= high
  | Add a b _ | Mul a b _ | Min a b _ | Max a b _ | Monus a b _ =>
      obligations env a /\ obligations env b
  | Sub a b _ => obligations env a /\ obligations env b /\ eval env b <= eval env a
  | Div a b _ | Mod a b _ =>
      obligations env a /\ obligations env b /\
      (if 1 <=? least b then True else 1 <= eval env b)
  | Claim a high => obligations env a /\ eval env a <= high
  end.

Lemma check_range : forall env f, check f = true -> obligations env f ->
  fits env f /\ 0 <= least f <= eval env f.
Proof.
  intros env. induction f; intros decided owed; simpl in decided, owed |- *;
    rewrite ?andb_true_iff, ?Z.leb_le, ?Z.ltb_lt in decided;
    repeat match goal with
    | both : _ /\ _ |- _ => destruct both
    end;
    repeat match goal with
    | decided : check ?g = true, step : check ?g = true -> _ |- _ => specialize (step decided)
    | owed : obligations env ?g, step : obligations env ?g -> _ |- _ => specialize (step owed)
    end;
    repeat match goal with
    | both : _ /\ _ |- _ => destruct both
    end;
    repeat match goal with
    | fitted : fits env ?g |- _ =>
        lazymatch goal with
        | _ : eval env g <= most g |- _ => fail
        | _ => destruct (fits_range _ _ fitted) as [[? ?] ?]
        end
    end.
  - lia.
  - lia.
  - repeat split; try assumption; lia.
  - repeat split; try assumption; lia.
  - repeat split; try assumption; try nia.
  - assert (divisor : 1 <= eval env f2).
    { destruct (Z.leb_spec 1 (least f2)); [lia | assumption]. }
    assert (0 <= eval env f1 / eval env f2) by (apply Z.div_pos; lia).
    assert (eval env f1 / eval env f2 <= most f1 / Z.max 1 (least f2)).
    { apply Z.le_trans with (most f1 / eval env f2).
      - apply Z.div_le_mono; lia.
      - apply Z.div_le_compat_l; lia. }
    repeat split; try assumption; lia.
  - assert (divisor : 1 <= eval env f2).
    { destruct (Z.leb_spec 1 (least f2)); [lia | assumption]. }
    pose proof (Z.mod_pos_bound (eval env f1) (eval env f2) ltac:(lia)).
    pose proof (Z.mod_le (eval env f1) (eval env f2) ltac:(lia) ltac:(lia)).
    repeat split; try assumption; lia.
  - repeat split; try assumption; lia.
  - repeat split; try assumption; lia.
  - repeat split; try assumption; lia.
  - repeat split; try assumption; lia.
Qed.

(* What an instance proves of a formula: it fits, and the C text computes `value`. *)
Definition exact (env : environment) (f : formula) (value : Z) : Prop :=
  fits env f /\ c_value env f = value.

Lemma checked : forall env f value, check f = true -> obligations env f -> eval env f = value ->
  exact env f value.
Proof.
  intros env f value decided owed same. destruct (check_range env f decided owed) as [fit _].
  split; [exact fit |]. rewrite c_exact by exact fit. exact same.
Qed.

Lemma exact_range : forall env f value, exact env f value -> 0 <= value <= most f.
Proof.
  intros env f value [fit same]. pose proof (fits_range _ _ fit) as [range _].
  rewrite c_exact in same by exact fit. lia.
Qed.

(* Leaves the obligations of a formula that `check` accepts, without what is plain. *)
Ltac owe :=
  lazymatch goal with |- exact _ ?text _ => unfold text end;
  apply checked;
    [vm_compute; reflexivity | cbn [obligations eval value_of nth least] | reflexivity];
  repeat match goal with
  | |- context [if ?decided then True else _] =>
      let known := eval vm_compute in decided in change decided with known; cbv iota
  end;
  repeat split.

(* An obligation of a map: what is known of total, count, item and digits stands in the context. *)
Ltac owed := first [assumption | lia | nia].

(* A conjunction of formulas that fit. *)
Ltac owe_all :=
  repeat match goal with
  | known : _ /\ _ |- _ => destruct known
  end;
  lazymatch goal with
  | |- exact _ _ _ => owe; owed
  | |- _ => split; owe_all
  end.
