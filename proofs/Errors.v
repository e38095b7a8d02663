(* Errors.v - rounding: no changed operation has a larger normwise bound than stock's.

   A computed number comes from exact ones by operations that are rounded, each with a relative
   error of at most a unit; which units is a matter of formats: 2^-24 for binary32 rounded to
   nearest, 2^-23 where a tensor core truncates, 2^-11 for binary16. An expression's bound is the
   product of (1 + unit) over the roundings on its worst path, less one, relative to its scale: the
   sum of the magnitudes of its terms (Higham, section 3.1) or a larger norm, |x||w| among them.
   Proved are

     that any value which the roundings allow lies within that bound: for sums, products, functions
     with a slope (rounding), and for what is divided by, which is positive (factors);
     how many steps a sum has on a path (sums_counted).

   Which steps integers are is in Digits.v.

   What is left is to count: a schedule exports the roundings on the worst path of its operation
   beside those of stock's one-token decode, and Coq compares the two products exactly
   (bound_compared, bound_repeated).

   Numbers are rationals; no real numbers, no axioms. Exact roots, exponentials and sines are not
   rational, but limits of rationals, and the bounds hold for all of these. *)

Require Import QArith Qabs List Bool Lia ZArith Lqa.
Import ListNotations.

(* ---- positive numbers: what is divided by, and scales *)

Open Scope Q_scope.

(* y is within the factor g of x. *)
Definition near (g x y : Q) : Prop := 0 < x /\ 0 < y /\ x <= g * y /\ y <= g * x.

(* From the exact x, with growth g, an execution may compute y. Rounding to nearest errs by a unit
   of the larger and of the smaller of the two numbers. *)
Inductive derived : Q -> Q -> Q -> Prop :=
  | derived_known : forall x, 0 < x -> derived 1 x x
  | derived_sum : forall g x x' y y', derived g x x' -> derived g y y' ->
      derived g (x + y) (x' + y')
  | derived_product : forall g h x x' y y', derived g x x' -> derived h y y' ->
      derived (g * h) (x * y) (x' * y')
  | derived_quotient : forall g h x x' y y', derived g x x' -> derived h y y' ->
      derived (g * h) (x / y) (x' / y')
  | derived_root : forall g x y, 0 < x -> 0 < y -> 0 < g -> derived (g * g) (x * x) (y * y) ->
      derived g x y
  | derived_rounded : forall g unit x y z, derived g x y -> 0 <= unit -> 0 < z ->
      Qabs (z - y) <= unit * y -> Qabs (z - y) <= unit * z -> derived (g * (1 + unit)) x z
  | derived_coarser : forall g h x y, derived g x y -> g <= h -> derived h x y.

Lemma near_least : forall g x y, near g x y -> 1 <= g.
Proof.
  intros g x y [px [py [up down]]]. destruct (Qlt_le_dec g 1) as [less | more]; [| exact more]. nra.
Qed.

Lemma near_product : forall g h x x' y y', near g x x' -> near h y y' ->
  near (g * h) (x * y) (x' * y').
Proof.
  intros g h x x' y y' known known'. pose proof (near_least _ _ _ known).
  pose proof (near_least _ _ _ known'). destruct known as [? [? [? ?]]], known' as [? [? [? ?]]].
  repeat split; try nra.
Qed.

Lemma near_inverse : forall g x y, near g x y -> near g (/ x) (/ y).
Proof.
  intros g x y [px [py [up down]]].
  assert (swap : forall a b, 0 < a -> 0 < b -> a <= g * b -> / b <= g * / a).
  { intros a b pa pb less.
    setoid_replace (/ b) with (a * (/ a * / b)) by (field; split; lra).
    setoid_replace (g * / a) with (g * b * (/ a * / b)) by (field; split; lra).
    apply Qmult_le_compat_r; [exact less |].
    apply Qlt_le_weak, Qmult_lt_0_compat; apply Qinv_lt_0_compat; assumption. }
  repeat split; try (apply Qinv_lt_0_compat; assumption); apply swap; assumption.
Qed.

(* Law factors: positive numbers that are computed by sums, products, quotients, roots and roundings
   are within the product of (1 + unit) over the roundings on the worst path of the exact ones, both
   ways; what is under a root counts half. What is divided by such a number errs by a step more.
   Mirrors: err_attn. *)
Theorem factors : forall g x y, derived g x y -> 1 <= g /\ near g x y.
Proof.
  intros g x y run. cut (near g x y); [intro n; split; [exact (near_least _ _ _ n) | exact n] |].
  induction run as [x known | g x x' y y' run near_x run' near_y
    | g h x x' y y' run near_x run' near_y | g h x x' y y' run near_x run' near_y
    | g x y px py pg run near_x | g unit x y z run near_x known positive err err'
    | g h x y run near_x coarser].
  - repeat split; lra.
  - destruct near_x as [? [? [? ?]]], near_y as [? [? [? ?]]]. repeat split; nra.
  - apply near_product; assumption.
  - apply near_product; [| apply near_inverse]; assumption.
  - destruct near_x as [? [? [up down]]]. repeat split; try assumption.
    + destruct (Qlt_le_dec (g * y) x) as [more | less]; [| exact less].
      assert (0 < g * y) by nra. nra.
    + destruct (Qlt_le_dec (g * x) y) as [more | less]; [| exact less].
      assert (0 < g * x) by nra. nra.
  - pose proof (near_least _ _ _ near_x). destruct near_x as [? [? [? ?]]].
    apply Qabs_Qle_condition in err. apply Qabs_Qle_condition in err'.
    assert (y <= (1 + unit) * z) by lra. assert (z <= (1 + unit) * y) by lra.
    repeat split; try assumption; nra.
  - destruct near_x as [? [? [? ?]]]. repeat split; try assumption; nra.
Qed.

(* ---- the bound of an expression *)

(* What is added, multiplied, rounded: a tree.
     Moved    an error of a unit of the scale, not of the number: digits, sines
     Over     divided by d, which is known within a factor g
     Through  a function of it, of some slope, whose exact value is given; or another scale *)
Inductive expression :=
  | Term (exact : Q)
  | Plus (a b : expression)
  | Times (a b : expression)
  | Rounded (unit : Q) (a : expression)
  | Moved (unit : Q) (a : expression)
  | Over (g d : Q) (a : expression)
  | Through (exact scale : Q) (a : expression).

Fixpoint exact_of (e : expression) : Q :=
  match e with
  | Term x => x
  | Plus a b => exact_of a + exact_of b
  | Times a b => exact_of a * exact_of b
  | Rounded _ a | Moved _ a => exact_of a
  | Over _ d a => exact_of a * / d
  | Through x _ _ => x
  end.

(* The scale of its errors. *)
Fixpoint magnitude (e : expression) : Q :=
  match e with
  | Term x => Qabs x
  | Plus a b => magnitude a + magnitude b
  | Times a b => magnitude a * magnitude b
  | Rounded _ a | Moved _ a => magnitude a
  | Over _ d a => magnitude a * / d
  | Through _ scale _ => scale
  end.

(* One plus the bound: the largest product of (1 + unit) on a way from a term to the result; of
   factors the ways' product. *)
Fixpoint growth (e : expression) : Q :=
  match e with
  | Term _ => 1
  | Plus a b => if Qle_bool (growth a) (growth b) then growth b else growth a
  | Times a b => growth a * growth b
  | Rounded unit a | Moved unit a => growth a * (1 + unit)
  | Over g _ a => growth a * g
  | Through _ _ a => growth a
  end.

(* The values that an execution may give: every rounding errs by at most its unit. *)
Inductive computes : expression -> Q -> Prop :=
  | computes_term : forall x, computes (Term x) x
  | computes_plus : forall a b x y, computes a x -> computes b y -> computes (Plus a b) (x + y)
  | computes_times : forall a b x y, computes a x -> computes b y -> computes (Times a b) (x * y)
  | computes_rounded : forall unit a x y, computes a x -> 0 <= unit ->
      Qabs (y - x) <= unit * Qabs x -> computes (Rounded unit a) y
  | computes_moved : forall unit a x y, computes a x -> 0 <= unit ->
      Qabs (y - x) <= unit * magnitude a -> computes (Moved unit a) y
  | computes_over : forall g d d' a x, computes a x -> near g d d' ->
      computes (Over g d a) (x * / d')
  | computes_through : forall exact scale slope a x y, computes a x -> 0 <= slope ->
      slope * magnitude a <= scale -> Qabs exact <= scale ->
      Qabs (y - exact) <= slope * Qabs (x - exact_of a) -> computes (Through exact scale a) y.

(* What is kept at every node: the exact value is within the scale, the error within the bound. *)
Definition bounded (e : expression) (x : Q) : Prop :=
  1 <= growth e /\ Qabs (exact_of e) <= magnitude e /\
  Qabs (x - exact_of e) <= (growth e - 1) * magnitude e.

Lemma bounded_size : forall e x, bounded e x -> Qabs x <= growth e * magnitude e.
Proof.
  intros e x [_ [size err]].
  apply Qle_trans with (Qabs ((x - exact_of e) + exact_of e));
    [apply Qle_lteq; right; apply Qabs_wd; ring |].
  apply Qle_trans with (Qabs (x - exact_of e) + Qabs (exact_of e)); [apply Qabs_triangle | lra].
Qed.

Lemma bounded_scale : forall e x, bounded e x -> 0 <= magnitude e.
Proof. intros e x [_ [size _]]. pose proof (Qabs_nonneg (exact_of e)). lra. Qed.

Lemma bounded_plus : forall a b x y, bounded a x -> bounded b y -> bounded (Plus a b) (x + y).
Proof.
  intros a b x y known_a known_b. pose proof (bounded_scale _ _ known_a).
  pose proof (bounded_scale _ _ known_b).
  destruct known_a as [ga [sa ea]], known_b as [gb [sb eb]].
  unfold bounded. cbn [growth exact_of magnitude].
  assert (worst : growth a <= (if Qle_bool (growth a) (growth b) then growth b else growth a) /\
                  growth b <= (if Qle_bool (growth a) (growth b) then growth b else growth a)).
  { destruct (Qle_bool (growth a) (growth b)) eqn:order.
    - apply Qle_bool_iff in order. split; lra.
    - split; [lra |]. destruct (Qlt_le_dec (growth b) (growth a)) as [less | more]; [lra |].
      apply Qle_bool_iff in more. congruence. }
  set (g := if Qle_bool (growth a) (growth b) then growth b else growth a) in *.
  repeat split.
  - lra.
  - apply Qle_trans with (Qabs (exact_of a) + Qabs (exact_of b)); [apply Qabs_triangle | lra].
  - apply Qle_trans with (Qabs (x - exact_of a) + Qabs (y - exact_of b)).
    + rewrite (Qabs_wd _ ((x - exact_of a) + (y - exact_of b))) by ring. apply Qabs_triangle.
    + nra.
Qed.

Lemma product_le : forall a b c d, 0 <= a -> 0 <= b -> a <= c -> b <= d -> a * b <= c * d.
Proof.
  intros. apply Qle_trans with (c * b); [apply Qmult_le_compat_r; assumption |].
  rewrite (Qmult_comm c b), (Qmult_comm c d). apply Qmult_le_compat_r; lra.
Qed.

Lemma bounded_times : forall a b x y, bounded a x -> bounded b y -> bounded (Times a b) (x * y).
Proof.
  intros a b x y known_a known_b. pose proof (bounded_scale _ _ known_a).
  pose proof (bounded_scale _ _ known_b). pose proof (bounded_size _ _ known_b) as size.
  destruct known_a as [ga [sa ea]], known_b as [gb [sb eb]].
  unfold bounded. cbn [growth exact_of magnitude]. repeat split.
  - nra.
  - rewrite Qabs_Qmult. apply product_le; try apply Qabs_nonneg; assumption.
  - apply Qle_trans with (Qabs ((x - exact_of a) * y) + Qabs (exact_of a * (y - exact_of b))).
    + rewrite (Qabs_wd _ ((x - exact_of a) * y + exact_of a * (y - exact_of b))) by ring.
      apply Qabs_triangle.
    + rewrite !Qabs_Qmult.
      setoid_replace ((growth a * growth b - 1) * (magnitude a * magnitude b)) with
        ((growth a - 1) * magnitude a * (growth b * magnitude b) +
         magnitude a * ((growth b - 1) * magnitude b)) by ring.
      apply Qplus_le_compat; apply product_le; try apply Qabs_nonneg; assumption.
Qed.

(* An error of a unit, of whatever is no larger than growth times the scale. *)
Lemma bounded_error : forall a x y unit size, bounded a x -> 0 <= unit ->
  size <= growth a * magnitude a -> Qabs (y - x) <= unit * size ->
  Qabs (y - exact_of a) <= (growth a * (1 + unit) - 1) * magnitude a.
Proof.
  intros a x y unit size [ga [sa ea]] known small err.
  apply Qle_trans with (Qabs (y - x) + Qabs (x - exact_of a)).
  - rewrite (Qabs_wd _ ((y - x) + (x - exact_of a))) by ring. apply Qabs_triangle.
  - assert (unit * size <= unit * (growth a * magnitude a)) by nra. nra.
Qed.

Lemma bounded_over : forall g d d' a x, bounded a x -> near g d d' ->
  bounded (Over g d a) (x * / d').
Proof.
  intros g d d' a x known ratio. pose proof (near_least _ _ _ ratio) as least.
  pose proof (bounded_size _ _ known) as size. pose proof (bounded_scale _ _ known) as scale.
  pose proof known as [ga [sa ea]]. destruct ratio as [pd [pd' [up down]]].
  assert (inverse : 0 < / d) by (apply Qinv_lt_0_compat; exact pd).
  unfold bounded. cbn [growth exact_of magnitude]. repeat split.
  - nra.
  - rewrite Qabs_Qmult, (Qabs_pos (/ d)) by lra. apply Qmult_le_compat_r; lra.
  - (* x / d' is x / d times r, within g - 1 of 1 *)
    set (r := d * / d'). assert (same : x * / d' == x * r * / d) by (unfold r; field; split; lra).
    assert (high : r <= g).
    { unfold r. apply Qle_shift_div_r; [exact pd' | exact up]. }
    assert (low : 2 - g <= r).
    { assert (1 <= g * r).
      { unfold r. setoid_replace (g * (d * / d')) with (g * d * / d') by ring.
        apply Qle_shift_div_l; [exact pd' | lra]. }
      nra. }
    rewrite (Qabs_wd _ ((x * r - exact_of a) * / d)) by (rewrite same; ring).
    rewrite Qabs_Qmult, (Qabs_pos (/ d)) by lra.
    rewrite Qmult_assoc. apply Qmult_le_compat_r; [| lra].
    apply Qle_trans with ((growth a * (1 + (g - 1)) - 1) * magnitude a);
      [| apply Qle_lteq; right; ring].
    apply bounded_error with (x := x) (size := Qabs x); try assumption; [lra |].
    rewrite (Qabs_wd _ ((r - 1) * x)) by ring. rewrite Qabs_Qmult.
    apply Qmult_le_compat_r; [apply Qabs_Qle_condition; split; lra | apply Qabs_nonneg].
Qed.

(* Law rounding: whatever the roundings do, the result differs from the exact one by at most the
   bound times the scale, the sum of the terms' magnitudes or what is above it, whichever way it is
   added up, multiplied, divided, or taken through functions.
   Mirrors: nat_order, err_gemm, err_attn. *)
Theorem rounding : forall e x, computes e x ->
  Qabs (x - exact_of e) <= (growth e - 1) * magnitude e.
Proof.
  intros e x run. cut (bounded e x); [intros [_ [_ err]]; exact err |].
  induction run as [x | a b x y run near_a run' near_b | a b x y run near_a run' near_b
    | unit a x y run known positive err | unit a x y run known positive err
    | g d d' a x run known ratio | exact scale slope a x y run known positive over size err].
  - unfold bounded. cbn [growth exact_of magnitude].
    rewrite (Qabs_wd (x - x) 0) by ring. change (Qabs 0) with 0. repeat split; try lra.
  - apply bounded_plus; assumption.
  - apply bounded_times; assumption.
  - pose proof (bounded_size _ _ known). pose proof known as [ga [sa ea]].
    repeat split; cbn [growth exact_of magnitude]; [nra | exact sa |].
    apply bounded_error with (x := x) (size := Qabs x); assumption.
  - pose proof (bounded_scale _ _ known). pose proof known as [ga [sa ea]].
    repeat split; cbn [growth exact_of magnitude]; [nra | exact sa |].
    apply bounded_error with (x := x) (size := magnitude a); try assumption. nra.
  - apply bounded_over with (d' := d'); assumption.
  - destruct known as [ga [sa ea]]. repeat split; cbn [growth exact_of magnitude]; try assumption.
    apply Qle_trans with (slope * ((growth a - 1) * magnitude a)); [| nra].
    apply Qle_trans with (slope * Qabs (x - exact_of a)); [exact err | nra].
Qed.

(* ---- how many steps a sum has *)

Definition add_rounded (unit : Q) (sum term : expression) := Rounded unit (Plus sum term).

(* Terms added one after another, and those of 2^n lanes by n exchanges. *)
Definition chain (unit : Q) (terms : list Q) : expression :=
  fold_left (fun sum x => add_rounded unit sum (Term x)) terms (Term 0).
Fixpoint butterfly (unit : Q) (n : nat) (lane : nat -> expression) : expression :=
  match n with
  | O => lane O
  | S n => add_rounded unit (butterfly unit n (fun i => lane (2 * i)%nat))
                       (butterfly unit n (fun i => lane (2 * i + 1)%nat))
  end.

Fixpoint power (g : Q) (n : nat) : Q :=
  match n with
  | O => 1
  | S n => power g n * g
  end.

Lemma growth_added : forall unit sum term g, 0 <= unit -> growth sum <= g -> growth term <= g ->
  growth (add_rounded unit sum term) <= g * (1 + unit).
Proof.
  intros unit sum term g known first second. cbn [add_rounded growth].
  destruct (Qle_bool (growth sum) (growth term)); apply Qmult_le_compat_r; lra.
Qed.

Lemma power_least : forall g n, 1 <= g -> 1 <= power g n.
Proof. intros g n known. induction n; cbn [power]; [lra | nra]. Qed.

Lemma chain_from : forall unit terms sum g, 0 <= unit -> 1 <= g -> growth sum <= g ->
  growth (fold_left (fun sum x => add_rounded unit sum (Term x)) terms sum) <=
  g * power (1 + unit) (length terms).
Proof.
  intros unit terms. induction terms as [| x terms more]; intros sum g known least small;
    cbn [fold_left length power]; [lra |].
  apply Qle_trans with (g * (1 + unit) * power (1 + unit) (length terms));
    [| apply Qle_lteq; right; ring].
  apply more; [exact known | nra |]. apply growth_added; cbn [growth]; assumption.
Qed.

(* Law sums_counted: a chain of n additions or fused multiply-adds has n steps on its worst path; a
   butterfly over 2^m lanes, each with such a chain, has m more: n + 5 over the 32 of a warp.
   Mirrors: nat_order, err_gemm. *)
Theorem sums_counted : forall unit terms n, 0 <= unit ->
  (forall i, (length (terms i) <= length (terms O))%nat) ->
  growth (butterfly unit n (fun i => chain unit (terms i))) <=
  power (1 + unit) (length (terms O)) * power (1 + unit) n.
Proof.
  intros unit terms n known longest.
  set (g := power (1 + unit) (length (terms O))).
  assert (lanes : forall i, growth (chain unit (terms i)) <= g).
  { intro i. apply Qle_trans with (1 * power (1 + unit) (length (terms i))).
    - apply chain_from; cbn [growth]; lra.
    - rewrite Qmult_1_l. unfold g. generalize (longest i). generalize (length (terms O)).
      induction 1 as [| m less more]; [lra |].
      cbn [power]. pose proof (power_least (1 + unit) m ltac:(lra)). nra. }
  assert (all : forall n lane, (forall i, growth (lane i) <= g) ->
            growth (butterfly unit n lane) <= g * power (1 + unit) n).
  { clear n. induction n as [| n more]; intros lane small; cbn [butterfly power].
    - rewrite Qmult_1_r. apply small.
    - rewrite Qmult_assoc. apply growth_added; [exact known | |]; apply more; intro; apply small. }
  apply all, lanes.
Qed.

Close Scope Q_scope.
Open Scope Z_scope.

(* ---- counting steps *)

(* Units in 2^-24: binary32 to nearest, truncating tensor sums, binary16, binary16 sums, bfloat16 to
   nearest and toward zero, and what integers are. *)
Inductive rounding_class := R32 | T32 | R16 | T16 | B16 | TB16 | Units (unit : positive).
Definition unit_of (c : rounding_class) : Z :=
  match c with
  | R32 => 1 | T32 => 2 | R16 => 2 ^ 13 | T16 => 2 ^ 14 | B16 => 2 ^ 16 | TB16 => 2 ^ 17
  | Units unit => Zpos unit
  end.

Definition steps := list (rounding_class * nat).

(* The product of (1 + unit) in units of 2^-24, and how many factors it has. *)
Fixpoint growth_of (s : steps) : Z :=
  match s with
  | [] => 1
  | (c, n) :: rest => (2 ^ 24 + unit_of c) ^ Z.of_nat n * growth_of rest
  end.
Fixpoint count_of (s : steps) : Z :=
  match s with
  | [] => 0
  | (_, n) :: rest => Z.of_nat n + count_of rest
  end.
Lemma count_pos : forall s, 0 <= count_of s.
Proof. induction s as [| [c n] rest known]; simpl; lia. Qed.

(* The bound of `ours` is no larger than that of `stock`. *)
Definition bound_at_most (ours stock : steps) : bool :=
  growth_of ours * 2 ^ (24 * count_of stock) <=? growth_of stock * 2 ^ (24 * count_of ours).

Open Scope Q_scope.
Definition unit_q (c : rounding_class) : Q := unit_of c # (2 ^ 24).
(* A path with these steps on it. *)
Fixpoint path_of (x : Q) (s : list rounding_class) : expression :=
  match s with
  | [] => Term x
  | c :: s => Rounded (unit_q c) (path_of x s)
  end.
Fixpoint flat (s : steps) : list rounding_class :=
  match s with
  | [] => []
  | (c, n) :: rest => repeat c n ++ flat rest
  end.

Fixpoint growth_q (s : list rounding_class) : Q :=
  match s with
  | [] => 1
  | c :: rest => growth_q rest * (1 + unit_q c)
  end.

Lemma growth_path : forall x s, growth (path_of x s) = growth_q s.
Proof.
  intros x s. induction s as [| c s same]; simpl; [reflexivity | rewrite same; reflexivity].
Qed.

Lemma growth_flat : forall s,
  growth_q (flat s) * inject_Z (2 ^ (24 * count_of s)) == inject_Z (growth_of s).
Proof.
  induction s as [| [c n] s same]; [reflexivity |]. cbn [count_of growth_of flat].
  pose proof (count_pos s). induction n as [| n more].
  - cbn [repeat app]. change (Z.of_nat 0) with 0%Z.
    rewrite Z.add_0_l, Z.pow_0_r, Z.mul_1_l. exact same.
  - rewrite Nat2Z.inj_succ, Z.pow_succ_r by lia.
    replace (24 * (Z.succ (Z.of_nat n) + count_of s))%Z
      with (24 + 24 * (Z.of_nat n + count_of s))%Z by lia.
    rewrite Z.pow_add_r by lia. cbn [repeat app growth_q].
    rewrite <- Z.mul_assoc, !inject_Z_mult.
    rewrite inject_Z_mult in more. rewrite <- more.
    assert (factor : (1 + unit_q c) * inject_Z (2 ^ 24) == inject_Z (2 ^ 24 + unit_of c)).
    { unfold unit_q. change (2 ^ 24)%positive with 16777216%positive.
      change (2 ^ 24)%Z with 16777216%Z. unfold Qeq, Qmult, Qplus, inject_Z. cbn [Qnum Qden].
      rewrite !Pos2Z.inj_mul. lia. }
    rewrite <- factor. ring.
Qed.

(* Law bound_compared: where the comparison of two operations' steps says so, the normwise bound of
   the first is no larger than that of the second.
   Mirrors: err_gemm, err_attn, err_prefill. *)
Theorem bound_compared : forall ours stock, bound_at_most ours stock = true ->
  forall x, growth (path_of x (flat ours)) - 1 <= growth (path_of x (flat stock)) - 1.
Proof.
  intros ours stock decided x. unfold bound_at_most in decided. apply Z.leb_le in decided.
  rewrite !growth_path.
  assert (positive : forall s, (0 < 2 ^ (24 * count_of s))%Z).
  { intro s. apply Z.pow_pos_nonneg; [lia |].
    pose proof (count_pos s). lia. }
  pose proof (growth_flat ours) as of_ours. pose proof (growth_flat stock) as of_stock.
  pose proof (positive ours) as some_ours. pose proof (positive stock) as some_stock.
  rewrite Zlt_Qlt in some_ours, some_stock. rewrite Zle_Qle, !inject_Z_mult in decided.
  rewrite <- of_ours, <- of_stock in decided.
  set (p := inject_Z (2 ^ (24 * count_of ours))) in *.
  set (q := inject_Z (2 ^ (24 * count_of stock))) in *.
  assert (both : growth_q (flat ours) * (p * q) <= growth_q (flat stock) * (p * q)).
  { setoid_replace (growth_q (flat ours) * (p * q)) with (growth_q (flat ours) * p * q) by ring.
    setoid_replace (growth_q (flat stock) * (p * q)) with (growth_q (flat stock) * q * p) by ring.
    exact decided. }
  apply Qmult_le_r in both; [lra |]. change (0 < p) in some_ours. change (0 < q) in some_stock. nra.
Qed.

Lemma growth_repeat : forall s n, growth_q (concat (repeat s n)) == power (growth_q s) n.
Proof.
  assert (app : forall a b, growth_q (a ++ b) == growth_q a * growth_q b).
  { induction a as [| c a same]; intro b; cbn [app growth_q]; [ring | rewrite same; ring]. }
  intros s n. induction n as [| n same]; cbn [repeat concat power]; [reflexivity |].
  rewrite app, same. ring.
Qed.

Lemma growth_some : forall s, 1 <= growth_q s.
Proof.
  induction s as [| c s more]; cbn [growth_q]; [lra |].
  assert (0 <= unit_q c) by (destruct c; discriminate). nra.
Qed.

(* Law bound_repeated: the same holds after any number of steps of a recurrence, each of which takes
   its state from the one before.
   Mirrors: err_gemm. *)
Theorem bound_repeated : forall ours stock, bound_at_most ours stock = true ->
  forall x n, growth (path_of x (concat (repeat (flat ours) n))) - 1 <=
              growth (path_of x (concat (repeat (flat stock) n))) - 1.
Proof.
  intros ours stock decided x n. pose proof (bound_compared ours stock decided x) as once.
  rewrite !growth_path, !growth_repeat in *.
  pose proof (growth_some (flat ours)). pose proof (growth_some (flat stock)).
  cut (power (growth_q (flat ours)) n <= power (growth_q (flat stock)) n); [lra |].
  induction n as [| n more]; cbn [power]; [lra |].
  pose proof (power_least (growth_q (flat ours)) n ltac:(lra)). nra.
Qed.

Close Scope Q_scope.
Open Scope Z_scope.

(* ---- use *)

Open Scope Q_scope.
(* 1 / 3 in decimals of one digit, halves and thirds rounded: every kind of node. *)
Example rounding_used := rounding _ _
  (computes_through 2 4 1 _ _ 2
    (computes_over 2 1 1 _ _
      (computes_moved (1 # 2) _ _ 2
        (computes_rounded (1 # 2) _ 3 2
          (computes_times _ _ _ _ (computes_term 1)
            (computes_plus _ _ _ _ (computes_term 1) (computes_term 2)))
          ltac:(discriminate) ltac:(discriminate))
        ltac:(discriminate) ltac:(discriminate))
      ltac:(repeat split; discriminate))
    ltac:(discriminate) ltac:(discriminate) ltac:(discriminate) ltac:(discriminate)).
Example factors_used := factors _ _ _
  (derived_rounded _ (1 # 2) _ _ 2
    (derived_quotient _ _ _ _ _ _
      (derived_product _ _ _ _ _ _ (derived_known 3 eq_refl) (derived_known 1 eq_refl))
      (derived_root 1 1 1 eq_refl eq_refl eq_refl
        (derived_coarser 1 1 _ _ (derived_known 1 eq_refl) (Qle_refl 1))))
    ltac:(discriminate) eq_refl ltac:(discriminate) ltac:(discriminate)).
Example sums_counted_used := sums_counted (1 # 2) (fun _ => [1; 2]) 1 ltac:(discriminate)
  (fun _ => le_n 2).
Close Scope Q_scope.
Example bound_compared_used := bound_compared [(R32, 21%nat)] [(R32, 5%nat); (R16, 1%nat)] eq_refl.
Example bound_repeated_used := bound_repeated [(R32, 21%nat)] [(R32, 5%nat); (B16, 1%nat)] eq_refl.

(* A step of binary16 more is more. *)
Example steps_counted : bound_at_most [(R16, 2%nat)] [(R32, 50%nat); (R16, 1%nat)] = false.
Proof. vm_compute. reflexivity. Qed.
